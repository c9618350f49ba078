"""Intervals, tests, ranks and verdicts over recorded runs. Imports nothing heavy."""
