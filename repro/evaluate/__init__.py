"""Metrics, each with a protocol that fixes all that changes its value."""
