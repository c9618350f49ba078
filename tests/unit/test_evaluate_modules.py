"""The classic names through `evaluate.load`: the suite's numbers, from jobs that share nothing and reach nobody."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from repro.evaluate.modules import NAMES, module_path, private_cache
from repro.spec.errors import ConfigError

JOBS = 4
# Every way out leads through connect; an attempt is noted, since a library may take the refusal and go on.
NO_NETWORK = """
import os, socket

def connect(self, address, *rest):
    with open(os.environ["ATTEMPTS"], "a") as log:
        log.write(f"{address}\\n")
    raise OSError("no machine can be reached")

socket.socket.connect = socket.socket.connect_ex = connect
"""
JOB = """
import json, socket, sys
assert socket.socket.connect.__module__ == "sitecustomize"
sys.modules["transformers.pipelines"] = None  # a third of the time of a job, and no metric needs it
import evaluate
import numpy as np
from repro.evaluate.accuracy import accuracy
from repro.evaluate.bertscore import EMBEDDED_LAYERS, BertScorer, Encoder, embedded_encoder
from repro.evaluate.forecast import forecast_errors
from repro.evaluate.losses import BlockLosses, ppl_exp_mean, ppl_seq_mean, val_loss
from repro.evaluate.modules import NAMES, module_path
from repro.evaluate.rouge import RougeScorer

metrics = {name: evaluate.load(str(module_path(name))) for name in NAMES}
texts = {"predictions": ["the cat sat", "", "so it goes"], "references": ["a cat was sitting", "rain", "so it goes"]}
windows = {"predictions": [[0.1, 2.0], [3.0, 4.5]], "references": [[0.0, 2.5], [3.0, 4.0]]}
losses = {"predictions": [10.0, 30.0], "references": [10, 10]}
classes = {"predictions": [1, 0, 1], "references": [1, 1, 1]}
given = {"bertscore": texts, "rouge": texts, "mse": windows, "mae": windows, "perplexity": losses, "accuracy": classes}
module = {name: metric.compute(**given[name]) for name, metric in metrics.items()}
flat = metrics["mse"].compute(predictions=[1.0, 2.0], references=[1.0, 4.0])["mse"]
for bad in (0.9, -1):
    try:
        metrics["accuracy"].compute(predictions=[bad, 1], references=[1, bad])
    except Exception as error:
        module["refused %s" % bad] = str(error)

scorer = BertScorer(Encoder.load(embedded_encoder(), EMBEDDED_LAYERS))
bert = scorer.score_all(texts["predictions"], texts["references"])
rouge = RougeScorer(stemmer=False).score_all(texts["predictions"], texts["references"])
errors = forecast_errors([(windows["predictions"], windows["references"])], 2)
counts = np.array(losses["references"])
sums = BlockLosses(np.array(losses["predictions"]), counts, counts, counts)
rate = accuracy(classes["predictions"], classes["references"], "unnamed")
direct = {
    "bertscore": {
        "precision": bert.raw.precision.tolist(), "recall": bert.raw.recall.tolist(), "f1": bert.raw.f1.tolist(),
        "hashcode": scorer.protocol(), "empty": bert.empty, "weightless": bert.weightless, "cut": bert.cut,
    },
    "rouge": {kind: rouge.mean(kind) for kind in rouge.items},
    "mse": {"mse": errors.mse},
    "mae": {"mae": errors.mae},
    "perplexity": {p.__name__: p(sums) for p in (val_loss, ppl_exp_mean, ppl_seq_mean)},
    "accuracy": {
        "accuracy": rate.value, "low": rate.low, "high": rate.high, "correct": rate.correct, "n": rate.n,
        "split": rate.split,
    },
}
print(json.dumps({"module": module, "direct": direct, "flat": flat}))
"""


@dataclass(frozen=True)
class Jobs:
    """What four jobs at once printed, and what they left behind."""

    outputs: list[str]
    attempts: str
    in_home: list[str]
    folders: list[Path]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Jobs:
    top = tmp_path_factory.mktemp("jobs")
    blocked, home, attempts = top / "blocked", top / "home", top / "attempts"
    blocked.mkdir()
    home.mkdir(mode=0o555)
    attempts.touch()
    (blocked / "sitecustomize.py").write_text(NO_NETWORK)
    folders = [top / f"job{number}" for number in range(JOBS)]
    path = os.pathsep.join(filter(None, (str(blocked), os.environ.get("PYTHONPATH"))))
    common = {**os.environ, "HOME": str(home), "ATTEMPTS": str(attempts), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", JOB], cwd=repo_root, env={**common, **private_cache(folder)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for folder in folders
    ]  # fmt: skip
    ended = [(job.communicate(timeout=300), job.returncode) for job in running]
    assert [code for _, code in ended] == [0] * JOBS, ended[0][0][1]
    outputs = [out.splitlines()[-1] for (out, _), _ in ended]
    return Jobs(outputs, attempts.read_text(), [path.name for path in home.iterdir()], folders)


def test_case_m09_four_jobs_at_once_give_four_equal_results(jobs: Jobs) -> None:
    assert len(jobs.outputs) == JOBS
    assert len(set(jobs.outputs)) == 1
    assert jobs.attempts == ""
    assert jobs.in_home == []  # where the user is root, nothing else keeps them from it
    assert all((folder / "modules").is_dir() for folder in jobs.folders)


def test_a_module_gives_the_numbers_of_the_suite(jobs: Jobs) -> None:
    found: dict[str, Any] = json.loads(jobs.outputs[0])
    assert set(found["direct"]) == set(NAMES)
    for name, numbers in found["direct"].items():
        assert found["module"][name] == numbers, name
    assert found["module"]["perplexity"]["ppl_exp_mean"] == pytest.approx(7.389056, abs=1e-6)
    assert found["module"]["mae"]["mae"] == pytest.approx((0.1 + 0.5 + 0 + 0.5) / 4)
    assert found["flat"] == 2.0
    assert "whole numbers" in found["module"]["refused 0.9"]
    assert "1 of 2 items have no label" in found["module"]["refused -1"]


def test_a_module_is_found_by_its_name() -> None:
    assert {path.stem for path in module_path("rouge").parent.glob("[a-z]*.py")} == set(NAMES)
    with pytest.raises(ConfigError, match='did you mean "rouge"'):
        module_path("rogue")


def test_a_private_cache_holds_every_place_the_libraries_have(tmp_path: Path) -> None:
    """What their settings read from the environment as a folder of their own, or as a switch for the network."""
    found = private_cache(tmp_path)
    places = {name: value for name, value in found.items() if value != "1"}
    assert all(Path(value).is_relative_to(tmp_path) for value in places.values())
    assert {name for name in found if name.endswith("_OFFLINE")} == found.keys() - places.keys()
    for name in NAMES:  # each file must be one that `evaluate` can copy alone
        tree = ast.parse(module_path(name).read_text("utf-8"))
        assert all(node.level == 0 for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
