"""`repro power CLAIM`: how many runs an arm a claim's own test needs, before GPU hours are spent on fewer."""

from __future__ import annotations

from typing import Any

from repro.dag import bind
from repro.plan import Plan, build_plan
from repro.records.index import Index, load_index
from repro.spec.claims import Claim, known_names, load_claims
from repro.spec.errors import ConfigError, problem_error, shown, suggest
from repro.spec.paths import find_root
from repro.stats.planning import Forecast, Need, forecast
from repro.stats.select import ArmData, find_arms
from repro.stats.spread import Spread
from repro.verbs.output import columns, emit


def power(claim_id: str, tier: str | None, as_json: bool) -> None:
    """Prints the runs per arm that one claim needs for 80 % power, at each level that it may be held to."""
    root = find_root()
    plan = build_plan(root, tier)
    claims = {claim.id: claim for claim in load_claims(root, known_names(plan.configuration))}
    if claim_id not in claims:
        message = f"{shown(claim_id)} is not known{suggest(claim_id, claims)}"
        raise problem_error(ConfigError, "command line", "CLAIM", message)
    claim = claims[claim_id]
    family = sum(one.family == claim.family and one.shares_alpha for one in claims.values())
    found = forecast(claim, family, _arms(claim, plan, bind(plan, load_index(root))))
    if as_json:
        emit(row(found, plan.tier))
    else:
        _print(found, plan.tier)


def _arms(claim: Claim, plan: Plan, index: Index) -> dict[str, ArmData]:
    """The claim's cells with what is recorded of them; empty where this plan has none."""
    arms = find_arms(claim, claim.cells, plan, index) if claim.cells and not claim.not_planned else {}
    return {} if isinstance(arms, str) else arms


def _need_at(found: Forecast, start: str) -> Need | None:
    return next((need for need in found.needs if need.why.startswith(start)), None)


def _spread_data(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    low, high = spread.interval
    sizes = {"sd": spread.sd, "sd_low": low, "sd_high": high, "degrees": spread.degrees, "groups": spread.groups}
    return {**sizes, "over": spread.over.replace(" (", ", ")}


def row(found: Forecast, tier: str) -> dict[str, Any]:
    """The answer for machines; `runs_per_arm` is for one look at alpha, the others are named. null: none is known."""
    claim, decide = found.claim, found.claim.decide
    look, worst = _need_at(found, "alpha / 2"), _need_at(found, "the worst case")
    return {
        "id": claim.id,
        "paper": claim.paper,
        "says": claim.says,
        "kind": claim.kind,
        "test": decide.test if decide else None,
        "alternative": decide.alternative if decide else None,
        "alpha": decide.alpha if decide else None,
        "planned_n": decide.planned_n if decide else None,
        "extension": decide.extension if decide else None,
        "family": claim.family,
        "target_power": 0.8,
        "assumed": found.assumed,
        "runs_per_arm": found.needs[0].runs if found.needs else None,
        "runs_per_arm_each_look": look.runs if look else None,
        "runs_per_arm_worst_of_family": worst.runs if worst else None,
        "levels": [
            {
                "level": need.level,
                "why": need.why,
                "runs_per_arm": need.runs,
                "power_at_planned": need.power_at_planned,
                "power_at_extension": need.power_at_extension,
            }
            for need in found.needs
        ],
        "scenarios": [{"effect": one.effect, "runs_per_arm": one.runs} for one in found.scenarios],
        "spread": _spread_data(found.spread),
        "own_counts_p": found.own_p,
        "own_counts_decide": found.own_counts_decide,
        "notes": list(found.notes),
        "tier": tier,
    }


def _runs_words(runs: int | None) -> str:
    return "not known, or above 1000" if runs is None else str(runs)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _print(found: Forecast, tier: str) -> None:
    claim, decide = found.claim, found.claim.decide
    print(f"{claim.id}  {claim.says}")
    if decide:
        side = f", {decide.alternative}" if decide.alternative else ""
        more = f", one extension to {decide.extension}" if decide.extension else ""
        print(f"test: {decide.test}{side}; planned {decide.planned_n} runs per arm{more}")
    print(f"assumed: {found.assumed}")
    if decide and found.needs:
        head = ("level", "which is", "runs per arm for 80 %", f"power at {decide.planned_n}", "if extended")
        rows = [
            (f"{need.level:.3g}", need.why, _runs_words(need.runs), *map(_percent, need.powers)) for need in found.needs
        ]
        columns(rows, head)
    for one in found.scenarios:
        print(f"if {one.effect}: {_runs_words(one.runs)} runs per arm")
    for note in found.notes:
        print(f"note: {note}")
    if found.spread:
        print(f"note: the spread is that of tier {tier}; at another size of model it will differ")
