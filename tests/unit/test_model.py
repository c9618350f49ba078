"""The types that specifications are made of: what is written is what is read, in every model."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, PlainValidator, TypeAdapter, ValidationError

import repro.spec
from repro.spec.catalogue import ModelSpec
from repro.spec.claim_model import Reported
from repro.spec.model import Bool


def models() -> list[type[BaseModel]]:
    """Every model that a module of repro.spec defines."""
    modules = [
        importlib.import_module(f"repro.spec.{found.name}") for found in pkgutil.iter_modules(repro.spec.__path__)
    ]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    return [kind for kind in kinds if issubclass(kind, BaseModel) and kind.__module__.startswith("repro.spec.")]


def loose(kind: Any) -> Iterator[Any]:
    """Parts of a type for which pydantic would take a word or a number for a truth value, or the other way round."""
    if kind is bool:
        yield kind
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    if any(isinstance(note, PlainValidator) or note in get_args(Bool)[1:] for note in notes):
        return
    if get_origin(kind) is Literal:
        yield from (value for value in get_args(kind) if not isinstance(value, str))
        return
    for part in get_args(kind):
        yield from loose(part)


def test_no_model_takes_words_or_numbers_for_truth_values() -> None:
    fields = [(kind, name, field) for kind in models() for name, field in kind.model_fields.items()]
    assert len(fields) > 100
    found = {f"{kind.__name__}.{name}" for kind, name, field in fields if list(loose(field.rebuild_annotation()))}
    assert found == set()


@pytest.mark.parametrize("value", ["yes", "1", "true", "off", 0, 1, 1.0, None])
def test_a_truth_value_is_true_or_false(value: object) -> None:
    with pytest.raises(ValidationError, match="valid boolean"):
        TypeAdapter(Bool).validate_python(value)
    with pytest.raises(ValidationError, match="bias"):
        ModelSpec.model_validate({"n_layer": 1, "n_head": 1, "d_model": 8, "context": 8, "vocab": 8, "bias": value})


@pytest.mark.parametrize(
    "reported", [{"chain": 1}, {"chain": False}, {"comparable": "true"}, {"rank": True}, {"rank": 2}, {"known": 0}]
)
def test_what_a_claim_reports_is_no_number_where_a_truth_value_stands(reported: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(reported))):
        Reported.model_validate(reported)


def test_what_a_claim_reports_is_read_as_written() -> None:
    assert Reported(chain=True).given == ("chain",)
    assert Reported(rank=1).given == ("rank",)
