"""Reproduction suite and leaderboard for transformer-training papers."""

__version__ = "0.1.0"
