"""`python -m repro` is `repro`."""

from __future__ import annotations

import sys

from repro.verbs.stopping import stop_at_once


def main() -> None:
    """The command line; who stops it while it is still being imported gets one line, and a run its exit code."""
    if sys.argv[1:2] == ["run"]:
        stop_at_once()
    try:
        from repro.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        print("stopped by the keyboard", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
