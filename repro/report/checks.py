"""Tables of theory checks: one row a value of a planned cell, with its spread over draws and its extremes."""

from __future__ import annotations

from repro.plan import Plan
from repro.records.index import Index
from repro.report.cells import cell_data, closing_notes, complete_words, count_data, meta, summary_words
from repro.report.joined import Row, heading_notes, joined
from repro.report.table import Table, Value
from repro.spec.checks import CHECKS
from repro.spec.metrics import METRICS
from repro.stats.cells import CellResult, Summary, summarise

HEAD = ("check", "cell", "value", "unit", "draws complete", "mean (sample sd), [95 % t]", "smallest", "largest")


def checks_of(plan: Plan, paper: str) -> list[str]:
    """Experiments of one paper that check theory."""
    experiments = plan.configuration.experiments
    return [name for name in plan.cells if experiments[name].paper == paper and experiments[name].task == "check"]


def checks_table(plan: Plan, index: Index, names: list[str], name: str, title: str) -> Table:
    """All values of all cells of some experiments; extremes are those of the complete draws."""
    shown: list[tuple[str, ...]] = []
    data: list[dict[str, Value]] = []
    for experiment in names:
        for row in joined(plan, index, experiment):
            for metric, result in row.measured.items():
                low, high = _extremes(result)
                words = summary_words(summarise(result)), low, high
                shown.append((experiment, row.cell.label, metric, METRICS[metric].unit, complete_words(row), *words))
                data.append(_data(plan, row, metric, result))
    checks = {plan.cells[experiment][0].method for experiment in names if plan.cells[experiment]}
    said = [f"{CHECKS[check].id}: {CHECKS[check].info.says}" for check in sorted(checks)]
    notes = (*heading_notes(plan, names, []), *said, *closing_notes(plan, index, names))
    return Table(name, f"{title} (tier {plan.tier})", notes, HEAD, tuple(shown), tuple(data))


def _extremes(result: CellResult) -> tuple[str, str]:
    values = list(result.values.values())
    return (f"{min(values):.5g}", f"{max(values):.5g}") if values else ("none", "none")


def _data(plan: Plan, row: Row, metric: str, result: CellResult) -> dict[str, Value]:
    summary: Summary = summarise(result)
    values = list(result.values.values())
    low, high = summary.interval or ("none", "none")
    numbers: dict[str, Value] = {
        "value": metric,
        "protocol": METRICS[metric].protocol,
        "unit": METRICS[metric].unit,
        "mean": summary.state if summary.mean is None else summary.mean,
        "sample_sd": "none" if summary.sd is None else summary.sd,
        "t95_low": low,
        "t95_high": high,
        "smallest": min(values) if values else "none",
        "largest": max(values) if values else "none",
        "n": summary.n,
    }
    return meta(plan, row) | cell_data(row.cell) | count_data(row) | numbers


def paper_checks(plan: Plan, index: Index, paper: str) -> Table:
    """The checks of one paper."""
    names = checks_of(plan, paper)
    return checks_table(plan, index, names, f"checks_{paper}", f"Paper {paper.upper()}: theory checks")


def experiment_checks(plan: Plan, index: Index, experiment: str) -> Table:
    """The checks of one experiment."""
    title = plan.configuration.experiments[experiment].title or experiment
    return checks_table(plan, index, [experiment], experiment, title)
