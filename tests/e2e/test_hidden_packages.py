"""Case C05: packages that only some metrics need may be absent; the rest works, and the metric says what it needs."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.suite import Suite

HIDE = """
import importlib.metadata
import sys

NAMES = ("datasets", "transformers", "bert_score", "bert-score", "evaluate")
found = importlib.metadata.Distribution.from_name

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def from_name(name):
    if name in NAMES:
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)

sys.meta_path.insert(0, Hidden())
importlib.metadata.Distribution.from_name = from_name
"""


def test_case_c05_the_rest_works_and_the_metric_names_its_package(tmp_path: Path) -> None:
    suite = Suite.make(tmp_path / "clone", seeds=1, metrics=["val_loss", "bertscore_tf"])
    (suite.path / "sitecustomize.py").write_text(HIDE)
    suite.snakemake()
    records = {record["config"].get("protocol", "train"): record for record in suite.records().values()}
    assert {name: record["status"] for name, record in records.items()} == {
        "train": "complete",
        "val_loss": "complete",
        "bertscore_tf": "failed",
    }
    reason = records["bertscore_tf"]["status_detail"]["reason"]
    assert "pip install" in reason
    assert "bert" in reason or "transformers" in reason
    page = (suite.path / "results" / "site" / "smoke" / "index.html").read_text()
    assert "not measured 1 of 1" in page
