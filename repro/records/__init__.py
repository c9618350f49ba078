"""Immutable run records: schema, storage, index. Imports nothing heavy."""
