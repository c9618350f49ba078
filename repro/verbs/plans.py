"""`repro plan` and `repro show`."""

from __future__ import annotations

from typing import Any

from repro.dag import is_missing, views, write_key
from repro.dispatch import find_runs
from repro.plan import Plan, Run, build_plan
from repro.price import price_lines
from repro.records.index import load_index
from repro.spec.catalogue import TierTask
from repro.spec.errors import ConfigError, problem_error, suggest
from repro.spec.paths import find_root
from repro.spec.reading import Document
from repro.spec.stated import title_warnings
from repro.verbs.output import columns, emit, say


def plan(tier: str | None, experiments: list[str] | None, methods: list[str] | None, cost: bool, as_json: bool) -> None:
    """Prints the planned runs; with `cost` also what they take in all."""
    root = find_root()
    whole = build_plan(root, tier, experiments, methods)
    for name in whole.cells:
        for warning in title_warnings(whole.configuration.experiments[name], whole.configuration.documents[name]):
            say(f"warning: {warning}")
    index = load_index(root)
    index.refuse_problems()
    rows = [(run, "missing" if is_missing(whole, run, index) else "recorded") for run in whole.runs.values()]
    if as_json:
        for run, state in rows:
            emit(run_json(run, state))
        return
    if not cost:
        columns([(run.id, state, run.chunk, run.alias) for run, state in rows], ("id", "state", "chunk", "alias"))
    else:
        price = [(r.id, s, *_price(r), r.alias) for r, s in rows]
        columns(price, ("id", "state", "device", "minutes", "GPU hours", "memory GB", "alias"))
    missing = [run for run, state in rows if state == "missing"]
    for line in price_lines(missing) if cost else ():
        say(line)
    _summary(whole, missing)


def _price(run: Run) -> tuple[str, str, str, str]:
    cost = run.cost
    device = f"{cost.devices} x {cost.device}"
    return device, f"{cost.minutes:.1f}", f"{cost.gpu_hours:.1f}", f"{cost.memory_gb:.1f}"


def _summary(whole: Plan, missing: list[Run]) -> None:
    hours = sum(run.cost.gpu_hours for run in missing)
    minutes = sum(run.cost.minutes for run in missing)
    device = whole.configuration.suite.planning_device
    say(
        f"{len(whole.runs)} runs at tier {whole.tier}, {len(missing)} missing: about {minutes / 60:.1f} hours of one"
        f" worker, {hours:.1f} GPU hours (estimate for {device})"
    )


def run_json(run: Run, state: str) -> dict[str, Any]:
    """The contract's fields of one planned run."""
    return {
        "id": run.id,
        "alias": run.alias,
        "experiments": list(run.experiments),
        "chunk": run.chunk,
        "tracks": list(run.tracks),
        "tier": run.tier,
        "method": run.method,
        "params": run.params,
        "seed": run.seed,
        "tokens": run.tokens,
        "state": state,
        "cost": run.cost.as_json(),
    }


def write_key_of(tier: str | None, view: str) -> None:
    """Brings the key of one derived view up to date; a rule's job after its runs."""
    root = find_root()
    whole = build_plan(root, tier)
    if view not in views(whole):
        raise problem_error(ConfigError, "command line", "key", f"not known{suggest(view, views(whole))}")
    path = write_key(whole, load_index(root), view)
    path.touch()


def show(name: str, tier: str | None, as_json: bool) -> None:
    """Prints each resolved value of a run with the file and line it came from."""
    root = find_root()
    whole, runs = find_runs(root, [name], tier)
    rows = [(run, key, value, place) for run in runs for key, value, place in origins(whole, run)]
    if as_json:
        for run in runs:
            values = [{"key": k, "value": v, "from": p} for r, k, v, p in rows if r is run]
            emit(run_json(run, "planned") | {"config": run.config, "values": values})
        return
    for run in runs:
        say(f"{run.id}  {run.alias}")
        columns([(key, value, place) for r, key, value, place in rows if r is run], ("key", "value", "from"))


def origins(whole: Plan, run: Run) -> list[tuple[str, Any, str]]:
    """(key, value, `file:line` or the rule that gave it) of each value that the id covers."""
    documents = _documents(whole)
    experiment = documents["experiment", run.experiments[0]]
    tiers = documents["tiers", ""]
    if run.kind == "check":
        return _check_origins(documents, run)
    if run.config["task"] != "lm":
        return _descent_origins(documents, run)
    size = run.task.sized(run.axes["model"])
    found: list[tuple[str, Any, str]] = []
    for key, value in _flat(run.config, ()):
        head, rest = key[0], key[1:]
        if head == "model":
            place = _at(documents["models", ""], (size, *rest))
        elif head == "method":
            place = (
                f"repro/methods/{run.method}.py" if rest[0] != "params" else _params_place(experiment, run, rest[-1])
            )
        elif key == ("validation", "tokens"):
            place = _at(documents["data", ""], (run.data, "curve_tokens"))
        elif head == "data":
            place = _at(documents["data", ""], (run.data,))
        elif head in ("rules", "kind"):
            place = "repro/spec/rules.py"
        elif head == "seed":
            place = SEED_PLACE
        else:
            place = _experiment_or_tier(experiment, tiers, run, key)
        found.append((".".join(map(str, key)), value, place))
    return found


SEED_PLACE = "the plan: seeds 1..n, tuning seeds from 1001"


def _check_origins(documents: dict[tuple[str, str], Document], run: Run) -> list[tuple[str, Any, str]]:
    """Parameters of a check: out of the tier, the grid, the experiment, or the check's own file."""
    experiment, tiers, own = documents["experiment", run.experiments[0]], documents["tiers", ""], run.method
    found: list[tuple[str, Any, str]] = []
    for key, value in _flat(run.config, ()):
        place = f"repro/theory/checks/{own}.py"
        if key[:2] == ("check", "params"):
            name = key[2]
            asked = [
                (experiment, ("params", name)),
                (experiment, ("grid", name)),
                (tiers, (run.tier, "check", "params", own, name)),
            ]
            given = [_at(document, path) for document, path in asked if path in document.places]
            place = given[-1] if given else place
        elif key == ("threads",):
            place = _at(tiers, (run.tier, "check", "threads"))
        elif key == ("seed",):
            place = SEED_PLACE
        found.append((".".join(map(str, key)), value, place))
    return found


def _descent_origins(documents: dict[tuple[str, str], Document], run: Run) -> list[tuple[str, Any, str]]:
    """Values of a training that is no language model's: out of the tier or the experiment, where it names them."""
    experiment, tiers, task = documents["experiment", run.experiments[0]], documents["tiers", ""], run.config["task"]
    found: list[tuple[str, Any, str]] = []
    for key, value in _flat(run.config, ()):
        names = [_NAMED.get(key[-1], key[-1]), f"{key[-1]}s"]
        asked = [(tiers, (run.tier, task, name)) for name in names] + [(experiment, (name,)) for name in names]
        given = [_at(document, path) for document, path in asked if path in document.places]
        place = SEED_PLACE if key == ("seed",) else given[0] if given else "repro/spec/identity.py"
        found.append((".".join(map(str, key)), value, place))
    return found


_NAMED = {"count": "windows", "times": "validations"}  # what experiments and tiers call it
_TIER_KEYS = {
    ("steps",): "tokens",
    ("tokens_per_step",): "batch_tokens",
    ("precision",): "precision",
    ("threads",): "threads",
    ("validation", "times"): "validations",
    ("optimizer", "lr"): "lr_scale",
}
_EXPERIMENT_KEYS = {
    ("steps",): ("tokens",),
    ("tokens_per_step",): ("batch_tokens",),
    ("validation", "times"): ("validations",),
}


def _experiment_or_tier(experiment: Document, tiers: Document, run: Run, key: tuple[Any, ...]) -> str:
    own = _at(experiment, _grid_key(experiment, run, _EXPERIMENT_KEYS.get(key, key)))
    replaced = (run.tier, "lm", _TIER_KEYS.get(key, ""))
    if replaced in tiers.places:
        tier_place = _at(tiers, replaced)
        return f"{own} scaled by {tier_place}" if replaced[-1] == "lr_scale" else tier_place
    return own


def _grid_key(experiment: Document, run: Run, key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The point of a grid that this run stands at, where `key` names a list of them."""
    grid = experiment.value["optimizer"].get(key[-1]) if key[0] == "optimizer" else None
    if not isinstance(grid, list) or key[-1] not in run.axes:
        return key
    scale = run.task.lr_scale if key[-1] == "lr" and isinstance(run.task, TierTask) else 1.0
    return (*key, min(range(len(grid)), key=lambda place: abs(grid[place] * scale - run.axes[key[-1]])))


def _params_place(experiment: Document, run: Run, param: str) -> str:
    for index, choice in enumerate(experiment.value.get("methods") or []):
        if not isinstance(choice, dict) or str(choice.get("name")).casefold() != run.method:
            continue
        for path in ((param,), ("params", param)):  # the short and the long way to write it
            given = choice
            for key in path:
                given = given.get(key, {}) if isinstance(given, dict) else {}
            if given == run.params[param]:
                return _at(experiment, ("methods", index, *path))
    return f"repro/methods/{run.method}.py"


def _at(document: Document, key: tuple[Any, ...]) -> str:
    if key not in document.places:
        return "default"
    file, line = document.place(key)
    return f"{file}:{line}"


def _flat(value: Any, path: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict) and value:
        return [item for key, inner in value.items() for item in _flat(inner, (*path, key))]
    return [(path, value)]


def _documents(whole: Plan) -> dict[tuple[str, str], Document]:
    configuration = whole.configuration
    documents = {("experiment", name): document for name, document in configuration.documents.items()}
    return documents | {(name, ""): document for name, document in configuration.files.items()}
