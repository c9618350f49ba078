"""docs/claims.md is made of config/claims, whole and fresh."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from report_world import claims

from repro.spec.claims import load_unused
from repro.spec.paths import find_root


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = find_root().path / "tools" / "claims_docs.py"
    spec = importlib.util.spec_from_file_location("claims_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_fresh(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0, "run python tools/claims_docs.py"


def test_the_page_holds_every_claim_and_every_unused_number(tool: ModuleType) -> None:
    lines = tool.page(find_root()).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    for claim in claims():
        assert sum(line.startswith(f"| {claim.id} |") for line in rows) == 1, claim.id
    listed = sum(len(group.rows) for group in load_unused(find_root()))
    assert sum(line.startswith("| A | ") for line in rows) == listed
    widths = {line.count(" | ") for line in rows}
    assert widths == {len(tool.HEAD) - 1, 6}


def test_the_tool_tells_a_stale_page_and_mends_it(tool: ModuleType, tmp_path: Path) -> None:
    shutil.copytree(find_root().config, tmp_path / "config")
    (tmp_path / "docs").mkdir()
    assert tool.main(["--check"], tmp_path) == 1
    assert tool.main([], tmp_path) == 0
    assert tool.main(["--check"], tmp_path) == 0
    page = tmp_path / "docs" / "claims.md"
    page.write_text(page.read_text("utf-8").replace("A-C1", "A-C0"), "utf-8")
    assert tool.main(["--check"], tmp_path) == 1


def test_markup_in_a_claim_stays_text(tool: ModuleType) -> None:
    one = claims()[0].model_copy(update={"says": "<img src=x>|`a`"})
    line = tool.table(tool.HEAD, [tool.claim_row(one, tool.Ledger())]).splitlines()[-1]
    assert "<img" not in line
    assert line.count(" | ") == len(tool.HEAD) - 1
