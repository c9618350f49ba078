"""The learning rate of a claim: an end of the grid, or the one chosen on seeds that are not reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from claim_world import World, claim, rule

from repro.plan import Cell
from repro.spec.claim_ledger import Ledger
from repro.spec.claims import Claim
from repro.spec.errors import ConfigError
from repro.stats.verdict import Verdict, judge

SEEDS, TUNING = tuple(range(1, 9)), (1001, 1002)
RATES = (0.001, 0.01, 0.1)


class Grid(World):
    """Two arms at three learning rates; `loss(arm, rate, seed)` is what each run ends with."""

    def __init__(self, loss: Any, tuned: bool = True) -> None:
        super().__init__({"one": {1: 2.0}, "two": {1: 2.0}})
        planned = self.runs["one-1"]
        self.loss = loss
        self.cells = {"e": [self._cell(arm, rate, tuned) for arm in ("one", "two") for rate in RATES]}
        self.runs = dict.fromkeys((run_id for cell in self.cells["e"] for run_id, _ in cell.all_runs), planned)

    def _cell(self, arm: str, rate: float, tuned: bool) -> Cell:
        def ids(seeds: tuple[int, ...]) -> tuple[str, ...]:
            return tuple(f"{arm}@{rate}-{seed}" for seed in seeds)

        cell = Cell("e", f"{arm} {rate}", arm, {}, {"lr": rate}, ids(SEEDS), SEEDS)
        return replace(cell, tuning_ids=ids(TUNING), tuning_seeds=TUNING) if tuned else cell

    def _outcome(self, run_id: str) -> float | str | None:
        arm, rest = run_id.split("@")
        rate, seed = rest.rsplit("-", 1)
        return self.loss(arm, float(rate), int(seed))


def best(**cells: Any) -> Claim:
    made = claim("ordering", {"rank": 1}, rule("signed_rank", alternative="less"), ("one", "two"))
    return Claim.model_validate(made.model_dump() | {"cells": made.cells.model_dump() | cells, "setting": "theory"})


def verdict(one: Claim, world: Any) -> Verdict:
    (found,) = judge([one], world, world, "desk", Ledger())
    return found


def loss(arm: str, rate: float, seed: int) -> float | str | None:
    """Arm one is best at 0.1, arm two at 0.01; at one rate alone, arm two is the better one."""
    place = {"one": {0.001: 2.5, 0.01: 2.4, 0.1: 2.1}, "two": {0.001: 2.3, 0.01: 2.2, 0.1: "diverged"}}[arm][rate]
    return place + 0.001 * (seed % 7) if isinstance(place, float) else place


def test_each_method_stands_at_the_rate_that_was_chosen_for_it() -> None:
    found = verdict(best(), Grid(loss))
    assert found.verdict == "reproduced"
    assert "one, lr 0.1 (highest of the grid: a better one may lie beyond)" in found.ours
    assert "two, lr 0.01" in found.ours
    assert found.n_planned == 16


def test_reported_seeds_have_no_part_in_the_choice() -> None:
    def lucky(arm: str, rate: float, seed: int) -> float | str | None:
        if arm == "one" and rate == 0.001 and seed < 1000:
            return 1.0  # best of all on the reported seeds, never on those that choose
        return loss(arm, rate, seed)

    assert "one, lr 0.1 " in verdict(best(), Grid(lucky)).ours


def test_while_nothing_is_chosen_there_is_no_verdict_and_it_says_why() -> None:
    found = verdict(best(), Grid(lambda arm, rate, seed: None if seed == 1002 else loss(arm, rate, seed)))
    assert (found.verdict, "3 of 6 tuning runs are missing" in found.reason) == ("not_run", True)
    nothing = verdict(best(), Grid(lambda arm, rate, seed: "diverged"))
    assert "no rate of the grid came through" in nothing.reason


def test_a_claim_may_name_an_end_of_the_grid() -> None:
    assert verdict(best(rate="lowest"), Grid(loss)).verdict == "not_reproduced"
    assert verdict(best(rate="highest"), Grid(loss)).verdict == "reproduced"
    assert verdict(best(rate="lowest"), Grid(loss, tuned=False)).verdict == "not_reproduced"


def test_a_grid_without_tuning_seeds_must_be_narrowed_by_the_claim() -> None:
    with pytest.raises(ConfigError, match="differ in lr, which the claim must name"):
        verdict(best(), Grid(loss, tuned=False))
