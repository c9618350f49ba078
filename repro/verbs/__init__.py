"""What the command line does, one module for each group of verbs. Nothing heavy is imported at the top."""
