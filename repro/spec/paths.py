"""Where things lie. Every path of the suite is relative to one root, never to the working folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from repro.spec.errors import ConfigError, problem_error

MARK = Path("config") / "suite.yaml"


@dataclass(frozen=True, slots=True)
class Root:
    """The checkout that a command works in."""

    path: Path

    @property
    def config(self) -> Path:
        """Configuration files."""
        return self.path / "config"

    @property
    def scratch(self) -> Path:
        """Everything that can be made again; never committed."""
        return self.path / "scratch"

    @property
    def records(self) -> Path:
        """Committed records."""
        return self.path / "results" / "records"

    @property
    def community(self) -> Path:
        """Records of others."""
        return self.records / "community"

    @property
    def scratch_records(self) -> Path:
        """Records of try-outs, not committed, so that a newcomer's first run really trains."""
        return self.scratch / "records"

    def tables(self, tier: str) -> Path:
        """Generated tables of one tier."""
        return self.path / "results" / "tables" / tier

    def figures(self, tier: str) -> Path:
        """Generated figures of one tier."""
        return self.path / "results" / "figures" / tier

    def site(self, tier: str) -> Path:
        """Generated pages of one tier."""
        return self.path / "results" / "site" / tier

    def shown(self, path: Path) -> str:
        """`path` relative to the root where it lies inside, else its last part only; a link by its own name."""
        try:
            if ".." not in path.parts and path.is_relative_to(self.path):
                return path.relative_to(self.path).as_posix()
            return path.resolve().relative_to(self.path.resolve()).as_posix()
        except (ValueError, OSError, RuntimeError):  # outside, or links that lead in a circle
            return path.name

    def named(self, path: Path) -> str:
        """What messages call a file that the user has named: relative to the root if inside, else as it was given."""
        return self.shown(path) if is_inside(path, self.path) else str(path)


def is_inside(path: Path, folder: Path) -> bool:
    """Whether `path` lies in `folder` once all links are followed; a circle of links lies nowhere."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def refuse_link_out(path: Path, file: str) -> None:
    """Raises ConfigError, which calls it `file`, where `path` is a link that leads out of the folder it lies in."""
    if os.path.islink(path) and not is_inside(path, path.parent):
        raise problem_error(ConfigError, file, "", "is a symbolic link that leads out of its folder")


def find_root() -> Root:
    """REPRO_ROOT, else the nearest folder above the working folder with a suite, else the package's own checkout.

    Raises ConfigError where none of them holds config/suite.yaml.
    """
    named = os.environ.get("REPRO_ROOT")
    here = Path.cwd()
    package = Path(__file__).resolve().parents[2]
    candidates = [Path(named)] if named else [here, *here.parents, package]
    for folder in candidates:
        if (folder / MARK).is_file():
            return Root(folder.resolve())
    raise problem_error(ConfigError, "config/suite.yaml", "", "not found: start in a checkout, or set REPRO_ROOT")
