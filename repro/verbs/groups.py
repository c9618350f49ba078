"""The verbs that come in groups: `repro records ...`, `repro method ...`, `repro data ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="JSON on standard output, nothing else there")]
Paths = Annotated[list[Path] | None, typer.Argument()]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, max=64, help="processes; default: the cores that this one may use")
]

records_app = typer.Typer(no_args_is_help=True, help="Read, check and bring home run records.")
method_app = typer.Typer(no_args_is_help=True, help="The method registry: one file for each method.")
data_app = typer.Typer(no_args_is_help=True, help="Data sources: what there is, and how it becomes tokens.")


@records_app.command("list")
def records_list(paths: Paths = None, json: JsonFlag = False) -> None:
    """One line a record: id, status, alias."""
    from repro.verbs import records

    records.list_records(paths or [], json)


@records_app.command("show")
def records_show(name: str, json: JsonFlag = False) -> None:
    """One record, by id, alias or file."""
    from repro.verbs import records

    records.show(name, json)


@records_app.command("validate")
def records_validate(paths: Paths = None, json: JsonFlag = False) -> None:
    """Checks records; every problem of every file at once."""
    from repro.verbs import records

    records.validate(paths or [], json)


@records_app.command("import")
def records_import(folder: Path) -> None:
    """Checks all records of a folder, then copies those that are not here yet."""
    from repro.verbs import records

    records.import_records(folder)


@method_app.command("list")
def method_list(json: JsonFlag = False) -> None:
    """All methods, with their formulas' origin and parameters."""
    from repro.verbs import methods

    methods.list_methods(json)


@method_app.command("new")
def method_new(name: str) -> None:
    """Writes repro/methods/NAME.py, a method that works, to be changed."""
    from repro.verbs import methods

    methods.new(name)


@method_app.command("check")
def method_check(name: str, json: JsonFlag = False) -> None:
    """Runs the contract on one method, in seconds on a CPU."""
    from repro.verbs import methods

    methods.check(name, json)


@method_app.command("card")
def method_card(
    name: Annotated[str | None, typer.Argument()] = None,
    every: Annotated[bool, typer.Option("--all", help="a table of all methods")] = False,
    json: JsonFlag = False,
) -> None:
    """What theory says of a method before any training: growth, bounds, sensitivity, uncertainty, dt."""
    from repro.verbs import card

    card.card(name, every, json)


@data_app.command("list")
def data_list(json: JsonFlag = False) -> None:
    """All sources, and whether they are prepared here."""
    from repro.verbs import data

    data.list_sources(json)


@data_app.command("fetch")
def data_fetch(
    name: str,
    origin: Annotated[str | None, typer.Option("--from", help="a folder or the https address of a mirror")] = None,
) -> None:
    """Brings the files of a source here: the only verb that connects to another machine."""
    from repro.verbs import data

    data.fetch_source(name, origin)


@data_app.command("prepare")
def data_prepare(name: str, workers: WorkersOption = None) -> None:
    """Makes the prepared data of a source: token files, or arrays."""
    from repro.verbs import data

    data.prepare_source(name, workers)


@data_app.command("verify")
def data_verify(name: str) -> None:
    """Reads the token files of a source again and compares them with their hashes."""
    from repro.verbs import data

    data.verify_source(name)


@data_app.command("leakage", hidden=True)
def data_leakage(name: str, out: Annotated[Path, typer.Option()], workers: WorkersOption = None) -> None:
    """Looks for validation documents in the training split; writes the result, refuses an overlap."""
    from repro.verbs import data

    data.leakage(name, out, workers)
