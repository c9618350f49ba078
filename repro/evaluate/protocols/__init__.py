"""Metrics, one file each: a literal INFO that fixes the protocol, and `compute`, which makes its numbers."""
