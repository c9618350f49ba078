"""One file for each check: INFO is read without running the file, `run(params, seed)` makes its numbers."""
