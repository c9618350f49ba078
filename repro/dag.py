"""What Snakemake has to know of the plan: chunks with missing runs, stamps, and the keys of derived views.

Three rules hold the workflow together; docs/decisions/002-workflow.md says why each is needed.
1. A chunk is in the DAG if one of its runs (or a metric of one) has no record.
2. Reading the plan in the main process removes a stamp one of whose records is gone.
3. A view depends on its key file. While runs are missing the key is taken away here and made by a job that waits
   for their stamps, and aggregate targets name it among their own inputs; otherwise it is written here, and only
   if its content changed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.cluster import adoption, leave_allocation, orphans, read_refusals, refuse_overrides
from repro.plan import Plan, Run, build_plan
from repro.price import price_lines
from repro.records.index import Index, eval_id, load_index
from repro.records.store import replace_text
from repro.spec.claims import PAPERS
from repro.spec.data import DataSource
from repro.spec.errors import BadDataError, MissingError, Problem
from repro.spec.hashing import sha256_file, sha256_json, short
from repro.spec.metrics import PROTOCOLS
from repro.spec.paths import Root, find_root

RUNTIME_FACTOR, RUNTIME_FLOOR = 2.0, 15  # walltime asked for: twice the estimate and a quarter of an hour
MANY_WORKERS = 16  # processes that prepare a large source
MEMORY_HEADROOM_MB = 1500  # the supervising process and the page cache beside the planned memory


def final_tokens(plan: Plan, run: Run) -> int:
    """Validation tokens that a run's metrics are made of; 0 for what is not measured on running text."""
    source = plan.configuration.sources[run.data] if run.data else None
    return source.final_tokens if isinstance(source, DataSource) else 0


def eval_ids(plan: Plan, run: Run, weights_sha256: str | None) -> dict[str, str]:
    """{metric: id of its eval record} of a run that ended with these weights; empty without weights."""
    tokens = final_tokens(plan, run)
    names = run.metrics if weights_sha256 else ()
    return {name: eval_id(run.full_sha256, str(weights_sha256), name, tokens) for name in names}


def unmeasured(plan: Plan, run: Run, index: Index) -> list[str]:
    """Metrics of `run` that have no eval record that stands; all of them where it is not trained."""
    record = index.settled(run.id)
    if record is None:
        return list(run.metrics)
    return [
        name for name, identity in eval_ids(plan, run, record.entry.weights).items() if index.settled(identity) is None
    ]


def bind(plan: Plan, index: Index) -> Index:
    """Tells `index` which validation tokens the plan measures on, and which runs Slurm did not take.

    A run whose data Slurm did not let be prepared was never submitted either.
    """
    index.final_tokens = {run.id: final_tokens(plan, run) for run in plan.runs.values()}
    refused = read_refusals(plan.configuration.root, plan.tier)
    index.refused = {
        run.id: refused[name]
        for run in (plan.runs.values() if refused else ())
        for name in (*sources_of(plan, run), run.chunk)
        if name in refused
    }
    return index


def sources_of(plan: Plan, run: Run) -> dict[str, str]:
    """{short digest: name} of the prepared data that a run reads: its own, and the text behind its start."""
    found = {short(run.config["data"]): run.data} if run.data else {}
    start = run.config.get("pretrained", {})
    if start.get("origin") == "own":
        name = plan.configuration.experiments[run.experiments[0]].pretrained.data  # type: ignore[union-attr]
        found[short(start["run"]["data"])] = run.task.stand_in(str(name))
    return found


def is_missing(plan: Plan, run: Run, index: Index) -> bool:
    """Whether anything of `run` remains to be done; only a complete run is measured."""
    record = index.settled(run.id)
    return record is None or (record.status == "complete" and bool(unmeasured(plan, run, index)))


def stamp(root: Root, chunk: str) -> Path:
    """The file that says that a chunk's job has ended; Snakemake's output, never a result."""
    return root.scratch / "done" / f"{chunk}.json"


def views(plan: Plan) -> dict[str, list[str]]:
    """Derived views, and the experiments that each is made of."""
    experiments = plan.configuration.experiments
    found = {f"paper_{p}": [name for name in plan.cells if experiments[name].paper == p] for p in PAPERS}
    found["leaderboard"] = [name for name in plan.cells if experiments[name].takes_all]
    found["site"] = list(plan.cells)
    return found


def key_path(root: Root, tier: str, view: str) -> Path:
    """Key file of one view."""
    return root.scratch / "plan" / tier / f"{view}.key"


def key_text(plan: Plan, index: Index, view: str) -> str:
    """Content of a key: changes exactly if the view could look different."""
    names = set(views(plan)[view])
    runs = [run for run in plan.runs.values() if names & set(run.experiments)]
    recorded = []
    for run in runs:
        record = index.latest(run.id)
        ids = [run.id, *eval_ids(plan, run, record.entry.weights).values()] if record else []
        recorded += [f"{identity} {len(index.records[identity])}" for identity in ids if identity in index.records]
    root, configuration = plan.configuration.root, plan.configuration
    content = {
        "planned": [[cell.experiment, cell.label, cell.run_ids] for name in sorted(names) for cell in plan.cells[name]],
        "experiments": {name: configuration.experiments[name].model_dump(mode="json") for name in sorted(names)},
        "tier": configuration.tiers[plan.tier].model_dump(mode="json"),
        "recorded": sorted(recorded),
        "refused": sorted(run.id for run in runs if index.is_refused(run.id)),
        "others": sorted(set(index.records)) if view == "site" else [],
        "claims": {path.name: path.read_text("utf-8") for path in sorted((root.config / "claims").glob("*.yaml"))},
        "code": _view_code(),
    }
    # Snakemake takes an input of known content for unchanged: a key that comes back to what it was, over a file
    # that was made of something else meanwhile, has to read differently.
    state, made = sha256_json(content), _made(plan, view)
    stale = {"made_of": made.get("of"), "altered": _altered(plan, made)}
    told = {} if stale == {"made_of": state, "altered": {}} else stale
    return json.dumps({"view": view, "sha256": state, **told}, indent=1) + "\n"


def write_key(plan: Plan, index: Index, view: str) -> Path:
    """Brings the key of `view` up to date, without touching it if nothing changed."""
    path = key_path(plan.configuration.root, plan.tier, view)
    replace_text(path, key_text(plan, index, view))
    return path


def is_fresh(plan: Plan, index: Index, view: str) -> bool:
    """Whether a view's files are there, unaltered, and made of just these records."""
    path = key_path(plan.configuration.root, plan.tier, view)
    try:
        known = path.read_text("utf-8")
    except OSError:
        return False
    return known == key_text(plan, index, view) and "made_of" not in json.loads(known)


def note_outputs(plan: Plan, index: Index, view: str, outputs: list[Path]) -> None:
    """Remembers what a view's files looked like when it was made, and of which state."""
    root = plan.configuration.root
    files = {path.relative_to(root.path).as_posix(): sha256_file(path) for path in outputs}
    made = {"of": json.loads(key_text(plan, index, view))["sha256"], "files": files}
    replace_text(key_path(root, plan.tier, view).with_suffix(".made"), json.dumps(made, indent=1) + "\n")


def _made(plan: Plan, view: str) -> dict[str, Any]:
    """What `note_outputs` wrote; empty if there is none."""
    try:
        made = json.loads(key_path(plan.configuration.root, plan.tier, view).with_suffix(".made").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return made if isinstance(made, dict) and isinstance(made.get("files"), dict) else {}


def _altered(plan: Plan, made: dict[str, Any]) -> dict[str, str | None]:
    """Files of a view that are no longer what the view wrote: a merge or a hand has changed them."""
    root, files = plan.configuration.root, made.get("files", {})
    now = {name: sha256_file(root.path / name) if (root.path / name).is_file() else None for name in files}
    return {name: now[name] for name, sha256 in files.items() if now[name] != sha256}


def _view_code() -> str:
    """Hash of the code that makes tables and verdicts: a table made by older code is stale."""
    package = Path(__file__).parent
    parts = ("stats", "report", "spec", "records", "evaluate/protocols", "theory/checks", "plan.py", "cells.py")
    files = sorted(p for part in parts for p in _below(package / part) if p.is_file())
    return sha256_json([p.read_text("utf-8") for p in files if p.suffix in (".py", ".html")])


def _below(path: Path) -> list[Path]:
    return list(path.rglob("*")) if path.is_dir() else [path]


@dataclass
class Dag:
    """The plan as Snakemake sees it."""

    root: Root
    plan: Plan
    chunks: dict[str, list[Run]]
    missing: list[str] = field(default_factory=list)
    views: dict[str, list[str]] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    left: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def stamps(self, view: str | None = None) -> list[str]:
        """Stamps of chunks with missing runs, of one view or of all; paths relative to the root."""
        names = None if view is None else set(self.views[view])
        return [
            f"scratch/done/{chunk}.json"
            for chunk in self.missing
            if names is None or any(names & set(run.experiments) for run in self.chunks[chunk])
        ]

    def checks(self) -> list[str]:
        """Stamps of theory checks that are missing."""
        return [f"scratch/done/{chunk}.json" for chunk in self.missing if self.chunks[chunk][0].kind == "check"]

    def pending(self) -> list[str]:
        """Views with missing runs: their keys are made by a job after these runs."""
        awaited = {name for chunk in self.missing for run in self.chunks[chunk] for name in run.experiments}
        return [view for view, names in self.views.items() if awaited & set(names)]

    def keys(self, *views: str) -> list[str]:
        """Keys that wait for runs, of these views or of all; a target names them, so that the runs are its own."""
        wanted = self.pending()
        return [f"scratch/plan/{self.plan.tier}/{view}.key" for view in views or wanted if view in wanted]

    def checked_data(self) -> str | list[str] | Callable[[Any], str | list[str]]:
        """Input of a chunk's job: the passed leakage check of its data, if any; a constant if all chunks share it.

        Constants matter: each function of a rule costs Snakemake about 0.1 ms for each of its jobs.
        """
        found = {chunk: self._leakage_of(chunk) for chunk in self.chunks}
        wanted: str | list[str] | Callable[[Any], str | list[str]] = _constant(found)
        return wanted

    def job_resources(self) -> dict[str, Any]:
        """What to ask a scheduler for, by key; a constant where all chunks ask for the same."""
        asked = {chunk: self.resources(chunk) for chunk in self.chunks}
        keys = {key for wanted in asked.values() for key in wanted}
        return {
            key: _constant({chunk: asked[chunk].get(key, _UNASKED.get(key, 0)) for chunk in asked})
            for key in sorted(keys)
        }

    def _leakage_of(self, chunk: str) -> str | list[str]:
        found = [f"scratch/data/{key}/leakage.json" for key in sources_of(self.plan, self.chunks[chunk][0])]
        return found[0] if len(found) == 1 else found

    def resources(self, chunk: str) -> dict[str, Any]:
        """What to ask a scheduler for: memory and time of the chunk's runs, devices of its largest.

        Of a run on several nodes every device is a task of its own; `mpi` leaves starting them to `repro run`.
        """
        runs = self.chunks[chunk]
        wall = sum(run.task.wall_minutes or run.cost.minutes * RUNTIME_FACTOR for run in runs)
        devices, nodes, on_gpu = runs[0].cost.devices, runs[0].task.nodes, runs[0].cost.device == "gpu"
        asked = {
            "mem_mb": int(max(run.cost.memory_gb for run in runs) * 1000) * (devices // nodes) + MEMORY_HEADROOM_MB,
            "runtime": f"{int(wall) + RUNTIME_FLOOR}m",
            "gpu": devices if on_gpu else 0,
        }
        if nodes > 1:
            asked |= {"nodes": nodes, "tasks": devices, "mpi": "srun"} | ({"tasks_per_gpu": 1} if on_gpu else {})
        elif devices > 1 and not on_gpu:
            asked["cpus_per_task"] = devices * runs[0].task.threads
        return asked

    def about(self, chunk: str) -> str:
        """A chunk in words, for a dry run: its runs, what they run on, their memory, what they cost."""
        runs, asked = self.chunks[chunk], self.resources(chunk)
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        devices = f"{asked['gpu']} GPU" if asked["gpu"] else f"{runs[0].task.threads} CPU thread"
        devices += f" on {asked['nodes']} nodes" if "nodes" in asked else ""
        price = sum(run.cost.gpu_hours for run in runs)
        return f"{runs[0].alias}{more}: {devices}, {asked['mem_mb'] / 1000:.1f} GB of memory, {price:.1f} GPU hours"

    def price(self) -> list[str]:
        """What the missing chunks will take of accelerators, by experiment, as lines of text."""
        return price_lines(run for chunk in self.missing for run in self.chunks[chunk])

    def threads(self) -> int:
        """Threads of a chunk's job; the tier fixes them."""
        return max((run.task.threads for run in self.plan.runs.values()), default=1)

    def workers(self, digest: str) -> int:
        """Processes for one source's data: what ships in a package is small, and not every node has many cores."""
        source = self.plan.configuration.sources[self.data[digest]]
        return MANY_WORKERS if source.fetch is not None else 1

    def after(self, rule: str) -> dict[str, Any]:
        """Resources by which a rule's jobs wait for those that a killed controller left in Slurm."""
        return dict(adoption(self.root, self.left, rule))

    def site_words(self) -> dict[str, str]:
        """Account, partition and QOS of the user's cluster, checked by the schema; only those that are set."""
        site = self.plan.configuration.suite.slurm
        words = {"slurm_account": site.account, "slurm_partition": site.partition, "qos": site.qos}
        return {key: word for key, word in words.items() if word is not None}


def refuse_damaged_data(root: Root, runs: Iterable[Run]) -> None:
    """Raises BadDataError if prepared data that are there are not what their manifest says; missing ones are made."""
    digests = {run.config["data"]: run.config["task"] == "lm" for run in runs if run.data}
    there = [d for d in sorted(digests) if (root.scratch / "data" / short(d) / "manifest.json").is_file()]
    if not there:
        return
    from repro.data.whole import prepared_problems

    if problems := [problem for digest in there for problem in prepared_problems(root, digest, digests[digest])]:
        raise BadDataError(problems)


def refuse_unfetched(root: Root, runs: Iterable[Run]) -> None:
    """Raises MissingError: what a metric needs has to be there before hours of training, not after them."""
    names = {name for run in runs for name in run.metrics}
    absent = [
        Problem(f"scratch/fetched/{folder}", None, name, f"is not there; run `repro data fetch {folder}`")
        for name in sorted(names)
        for folder in PROTOCOLS[name].info.needs
        if not (root.scratch / "fetched" / folder).is_dir()
    ]
    if absent:
        raise MissingError(absent)


# What a key that other chunks need says for a chunk that does not.
_UNASKED: dict[str, Any] = {"nodes": 1, "tasks": 1, "mpi": ""}


def _constant(values: dict[str, Any]) -> Any:
    """The one value that all chunks share, or a function of Snakemake's wildcards."""
    first = next(iter(values.values()))
    if all(value == first for value in values.values()):
        return first
    return lambda wildcards: values[wildcards.chunk]


def read_dag(tier: str | None, main: bool, asked: Any = None) -> Dag:
    """As `_read`, without collections meanwhile, and with all it made exempt from later ones: a plan is no garbage.

    With 10,000 runs, walking it again and again would take Snakemake longer than making it. A main process leaves the
    allocation that it may stand in. `asked` are Snakemake's settings of resources: with a number of nodes jobs go to a
    cluster, and those that a controller before this one left are looked for.
    """
    remote = asked is not None and asked.nodes is not None
    if main and asked is not None:
        refuse_overrides(asked.overwrite_resources)
    if main and (warning := leave_allocation(os.environ, remote)):
        print(f"warning: {warning}", file=sys.stderr)
    gc.disable()
    try:
        dag = _read(tier, main)
        for line in dag.price() if main else ():
            print(line, file=sys.stderr)
        dag.left = orphans(dag.root) if main and remote and dag.missing else {}
        return dag
    finally:
        gc.freeze()
        gc.enable()


def _read(tier: str | None, main: bool) -> Dag:
    """Plan, records and stamps of this checkout; only the main process changes files.

    Raises ConfigError or BadDataError before anything is started.
    """
    root = find_root()
    plan = build_plan(root, tier)
    index = load_index(root)
    index.refuse_problems()
    dag = Dag(root, plan, plan.chunks(), views=views(plan))
    dag.missing = [chunk for chunk, runs in dag.chunks.items() if any(is_missing(plan, run, index) for run in runs)]
    firsts = [runs[0] for runs in dag.chunks.values()]
    dag.data = {key: name for run in firsts for key, name in sources_of(plan, run).items()}
    if main:
        refuse_unfetched(root, (run for chunk in dag.missing for run in dag.chunks[chunk]))
        refuse_damaged_data(root, [dag.chunks[chunk][0] for chunk in dag.missing])
        for chunk in dag.missing:
            stamp(root, chunk).unlink(missing_ok=True)
        pending = dag.pending()
        for view in dag.views:
            if view in pending:
                key_path(root, plan.tier, view).unlink(missing_ok=True)
            else:
                write_key(plan, index, view)
    return dag
