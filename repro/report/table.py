"""One table, four formats. The CSV is tidy and carries its protocol in every row; the others are for reading."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.records.store import replace_text
from repro.report.escape import csv_text, latex, markdown, plain
from repro.spec.errors import CannotWriteError, problem_error

Value = str | int | float
LATEX_WRAP_FROM = 32  # characters; longer cells are set in lines
LATEX_WRAPPED = "p{3cm}"


@dataclass(frozen=True)
class Table:
    """`head` and `rows` are what people read; `data` holds one mapping a row, all with the same keys, for machines.

    `notes` name tier, rules, protocols, data and numbers of seeds: no table goes without them. `strong` are the
    (row, column) places to set in bold: the first group of a ranking, never merely the lowest mean.
    """

    name: str
    title: str
    notes: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    data: tuple[dict[str, Value], ...]
    strong: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        if any(len(row) != len(self.head) for row in self.rows) or len(self.rows) != len(self.data):
            raise ValueError(f"table {self.name} is not rectangular")
        if any(cell == "" for row in self.rows for cell in row):
            raise ValueError(f"table {self.name} has an empty cell: say in words what is not there")


def to_csv(table: Table) -> str:
    """Header and one line a row; numbers in full, text neutralised. Read it with `keep_default_na=False`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    keys = list(table.data[0]) if table.data else [plain(name) for name in table.head]
    writer.writerow([csv_text(key) for key in keys])
    for row in table.data:
        writer.writerow([csv_text(row[key]) if isinstance(row[key], str) else repr(row[key]) for key in keys])
    return out.getvalue()


def to_markdown(table: Table) -> str:
    """Title, table, notes; one line a row, the same number of cells in each."""
    lines = [f"## {markdown(table.title)}", "", _bars(table.head), "|" + " --- |" * len(table.head)]
    lines += [_bars(row, table, place) for place, row in enumerate(table.rows)]
    return "\n".join([*lines, "", *(f"- {markdown(note)}" for note in table.notes), ""])


def _bars(cells: Sequence[str], table: Table | None = None, row: int = 0) -> str:
    strong = table.strong if table else frozenset()
    words = [f"**{markdown(cell)}**" if (row, place) in strong else markdown(cell) for place, cell in enumerate(cells)]
    return "| " + " | ".join(words) + " |"


def to_latex(table: Table) -> str:
    """A `table` environment that needs no package; wide ones ask for landscape or a smaller font from the reader."""
    widths = [max(len(cell) for cell in column) for column in zip(table.head, *table.rows, strict=True)]
    columns = "".join(LATEX_WRAPPED if width > LATEX_WRAP_FROM else "l" for width in widths)
    lines = [
        r"\begin{table}",
        rf"\caption{{{latex(table.title)}. {' '.join(latex(note) + '.' for note in table.notes)}}}",
        r"\scriptsize",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\hline",
        _ampersands(table.head),
        r"\hline",
        *(_ampersands(row, table, place) for place, row in enumerate(table.rows)),
        r"\hline",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _ampersands(cells: Sequence[str], table: Table | None = None, row: int = 0) -> str:
    strong = table.strong if table else frozenset()
    words = [
        rf"\textbf{{{latex(cell)}}}" if (row, place) in strong else latex(cell) for place, cell in enumerate(cells)
    ]
    return " & ".join(words) + r" \\"


WRITERS: dict[str, Callable[[Table], str]] = {"csv": to_csv, "md": to_markdown, "tex": to_latex}


def write_file(path: Path, text: str) -> Path:
    """Writes a derived file whole or not at all, and only if it changes; raises CannotWriteError."""
    try:
        replace_text(path, text)
    except OSError as error:
        raise problem_error(CannotWriteError, path.name, "", str(error.strerror)) from None
    return path


def write_table(folder: Path, table: Table) -> list[Path]:
    """`<name>.csv`, `.md` and `.tex` under `folder`."""
    return [write_file(folder / f"{table.name}.{ending}", make(table)) for ending, make in WRITERS.items()]


def strict_json(value: object) -> str:
    """JSON for files and pipes: raises ValueError for NaN and infinities instead of writing what no parser takes."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
