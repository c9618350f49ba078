"""`python -m repro` is `repro`."""

from repro.cli import main

main()
