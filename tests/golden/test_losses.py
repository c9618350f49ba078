"""Five steps of every method: the same bits twice here, and the committed losses anywhere."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from repro.spec.experiment import LmExperiment, MethodChoice
from repro.spec.load import load_configuration
from repro.spec.methods import registry
from repro.spec.paths import find_root

ROOT = Path(__file__).resolve().parents[2]
GOLDEN: dict[str, dict[str, list[float]]] = json.loads((ROOT / "tests/golden/losses.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_tool", ROOT / "tools" / "golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def twice(tool: ModuleType) -> tuple[dict[str, Any], dict[str, Any]]:
    return tool.all_losses(), tool.all_losses()


@pytest.mark.parametrize("name", sorted(registry()))
def test_two_constructions_in_one_process_give_the_same_bits(
    name: str, twice: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    first, second = twice
    assert first[name] == second[name]
    assert all(math.isfinite(loss) for series in first[name].values() for loss in series)
    assert [len(series) for series in first[name].values()] == [5, 6]


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_the_losses_are_the_committed_ones(name: str, twice: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """To 1e-6, since processors differ; `python tools/golden.py --diff` shows what moved."""
    assert name in twice[0], "a method is gone: python tools/golden.py"
    for series, losses in GOLDEN[name].items():
        assert twice[0][name][series] == pytest.approx(losses, rel=0, abs=1e-6)


def test_every_method_that_a_papers_experiment_names_has_committed_losses() -> None:
    """A method that is only dropped in needs no second file; one that stands for a paper does."""
    experiments = load_configuration(find_root()).experiments.values()
    sweeps = [one for one in experiments if one.paper and isinstance(one, LmExperiment)]
    choices: list[MethodChoice] = [choice for one in sweeps for choice in one.methods or []]
    assert {choice.name.casefold() for choice in choices} <= GOLDEN.keys()


def test_no_two_methods_train_alike() -> None:
    """Case T12: what was asked for is what was trained."""
    assert len({tuple(losses["train"]) for losses in GOLDEN.values()}) == len(GOLDEN)
