"""A live line with share, rate and time left, on standard error and on a terminal only."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self


class Bar:
    """Counts `total` bytes (None: unknown); use as a context manager. Where there is no terminal it does nothing."""

    def __init__(self, what: str, total: float | None) -> None:
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

            amounts = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            console = Console(stderr=True)
            self._bar = Progress("{task.description}", BarColumn(), *amounts, console=console, transient=True)
            self._task = self._bar.add_task(what, total=total)

    def advance(self, amount: float) -> None:
        """So many more bytes are done."""
        if self._bar:
            self._bar.update(self._task, advance=amount)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
