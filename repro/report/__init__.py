"""Views of the plan and the records: tables, figures, one static page. Imports nothing heavy."""
