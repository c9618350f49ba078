"""Configuration, its validation and its identity. Imports nothing heavy."""
