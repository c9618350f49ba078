"""What may lie in config/: every other entry is told, since a file that nobody reads looks like one that counts."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from repro.spec.errors import ConfigError, Problem, suggest
from repro.spec.paths import Root, refuse_link_out

FILES = ("suite", "local", "tiers", "models", "data", "hardware", "encoders")
FOLDERS = ("experiments", "claims")
SILENT = (".*", "*~", "#*#", "*.bak", "*.orig", "README.md")  # what editors and people leave beside a file


def stray_problems(root: Root) -> Iterator[Problem]:
    """Entries of config/, experiments/ and claims/ that are not read, and links that lead out of them."""
    known = (*(f"{name}.yaml" for name in FILES), *FOLDERS)
    for entry in _entries(root.config):
        if entry.name not in known:
            yield Problem(root.shown(entry), None, "", f"is not read{suggest(entry.name, known)}")
        else:
            yield from _link_problems(root, entry)
    for folder in FOLDERS:
        for entry in _entries(root.config / folder):
            if entry.is_dir() and not entry.is_symlink():
                yield Problem(root.shown(entry), None, "", f"is not read: no folder is read in config/{folder}")
            elif entry.suffix != ".yaml":
                yield Problem(root.shown(entry), None, "", "is not read: the name must end in .yaml")
            else:
                yield from _link_problems(root, entry)


def _entries(folder: Path) -> list[Path]:
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [entry for entry in found if not any(fnmatch(entry.name, pattern) for pattern in SILENT)]


def _link_problems(root: Root, entry: Path) -> list[Problem]:
    try:
        refuse_link_out(entry, root.shown(entry))
    except ConfigError as error:
        return error.problems
    return []
