"""What `repro doctor` says, and how it asks other programs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

TOOL_SECONDS = 5.0  # for an answer of git's or Slurm's programs


@dataclass(frozen=True, slots=True)
class Line:
    """One finding: `state` is ok, warn or fail; `mend` says what to do about it."""

    state: str
    what: str
    detail: str
    mend: str = ""


def one_line(text: str, signs: int = 160) -> str:
    """A message of another program as part of one line."""
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))[:signs]


def ask(*command: str, signs: int = 160) -> tuple[int, str]:
    """Exit code and output, on one line, of a program; code 1 where it is missing or does not answer in time."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except FileNotFoundError:
        return 1, f"{command[0]} is not on PATH"
    except (OSError, subprocess.TimeoutExpired):
        return 1, f"{command[0]} did not answer within {TOOL_SECONDS:g} s"
    return done.returncode, one_line(f"{done.stdout} {done.stderr}", signs)
