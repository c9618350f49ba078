"""Files of all formats, their manifests, and lost shards (cases D01, D03)."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_world import CHECKOUT, TWENTY, contents, made, put, source_of

from repro.data import formats
from repro.data.sources import read_documents, read_units
from repro.spec.data import DataSource
from repro.spec.errors import BadDataError, MissingError
from repro.spec.paths import Root
from tests.shared import shared

LINES = "".join(json.dumps({"text": text}) + "\n" for text in TWENTY).encode()


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstd}


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "texts").mkdir()
    return Root(tmp_path)


def table(path: Path, texts: list[Any], column: str = "text", kind: Any = None, rows: int = 7) -> None:
    pq.write_table(pa.table({"id": range(len(texts)), column: pa.array(texts, kind)}), path, row_group_size=rows)


def read(root: Root, **more: Any) -> list[str]:
    return [document.text for document in read_documents(root, "mine", source_of(**more))]


def problems(root: Root, **more: Any) -> list[str]:
    with pytest.raises(BadDataError) as caught:
        read(root, **more)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("name", ["docs.jsonl", "docs.json", "docs.txt"])
def test_lines_and_texts_in_every_packing(root: Root, name: str, packing: str) -> None:
    if name + packing == "docs.json":  # one JSON value, not lines of them: the name says nothing of texts
        return
    data = LINES if "json" in name else "one document\nof two lines é".encode()
    (root.path / "texts" / f"{name}{packing}").write_bytes(PACKERS[packing](data))
    assert read(root) == (TWENTY if "json" in name else ["one document\nof two lines é"])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_parquet(root: Root, kind: Any) -> None:
    table(root.path / "texts" / "a.parquet", TWENTY, kind=kind)
    found = list(read_documents(root, "mine", source_of()))
    assert [document.text for document in found] == TWENTY
    assert [document.line for document in found] == list(range(1, 21))
    assert len(next(read_units(root, "mine", source_of(), [])).pieces) == 3


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".zst"])
@pytest.mark.parametrize("cut", [1, 9, 40])
def test_a_packed_file_that_is_cut_short_is_refused(root: Root, packing: str, cut: int) -> None:
    (root.path / "texts" / f"a.jsonl{packing}").write_bytes(PACKERS[packing](LINES)[:-cut])
    (message,) = problems(root)
    assert message.startswith(f"texts/a.jsonl{packing}: cannot be read to its end")


def test_every_fault_of_a_parquet_file_is_named(root: Root) -> None:
    folder = root.path / "texts"
    table(folder / "a.parquet", ["x", None, "y"])
    table(folder / "b.parquet", [1, 2])
    table(folder / "c.parquet", ["x"], column="content")
    (folder / "d.parquet").write_bytes(b"PAR1 no table")
    table(folder / "e.parquet", TWENTY)
    (folder / "e.parquet").write_bytes((folder / "e.parquet").read_bytes()[:-30])
    starts = [
        "texts/a.parquet:2: text: is null",
        "texts/b.parquet: text: is of type int64; texts are expected",
        "texts/c.parquet: text: is no column; there are ['id', 'content']",
        "texts/d.parquet: cannot be read to its end",
        "texts/e.parquet: cannot be read to its end",
    ]
    for message, start in zip(problems(root), starts, strict=True):
        assert message.startswith(start)
    assert read_field(root) == ["x"]


def read_field(root: Root) -> list[str]:
    for name in "abde":
        (root.path / "texts" / f"{name}.parquet").unlink()
    return read(root, field="content")


def test_a_text_under_another_name(root: Root) -> None:
    (root.path / "texts" / "a.jsonl").write_text('{"body": "x", "text": 3}\n', "utf-8")
    assert read(root, field="body") == ["x"]
    assert problems(root, field="other") == [
        'texts/a.jsonl:1: an object with the key "other" and a string under it is expected'
    ]


def test_one_set_of_documents_gives_the_same_tokens_from_every_format(tmp_path: Path) -> None:
    found = []
    for name in ("a.jsonl", "a.jsonl.zst", "a.json.gz", "a.parquet"):
        root = Root(tmp_path / name)
        put(root, TWENTY)
        if name.endswith("parquet"):
            table(root.path / "texts" / name, TWENTY)
        else:
            packing = name.removeprefix("a.jsonl").removeprefix("a.json")
            (root.path / "texts" / name).write_bytes(PACKERS[packing](LINES))
        if name != "a.jsonl":
            (root.path / "texts" / "docs.jsonl").unlink()
        else:
            (root.path / "texts" / "docs.jsonl").rename(root.path / "texts" / name)
        files = contents(made(root)[1])
        found.append((files["train.bin"], files["val.bin"]))
    assert len(set(found)) == 1


@pytest.mark.parametrize("block", [1, 50, 100, 1 << 20])
def test_a_long_line_is_found_wherever_a_block_ends(root: Root, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(formats, "BLOCK_BYTES", block)
    monkeypatch.setattr(formats, "MAX_DOCUMENT_BYTES", 60)
    lines = [json.dumps({"text": "x" * size}) for size in (3, 45, 60, 2)]
    (root.path / "texts" / "a.jsonl").write_text("\n".join(lines), "utf-8")
    assert problems(root)[0] == "texts/a.jsonl:3: longer than 60 bytes"


# -- D01: no remote code, no library of data sets --------------------------------------------------

WITHOUT_DATASETS = """
import sys
from pathlib import Path
for name in ("datasets", "huggingface_hub", "pyarrow", "torch", "transformers"):
    sys.modules[name] = None
from repro.data.prepare import prepare
from repro.spec.data import DataSource, digest
from repro.spec.paths import Root
from repro.spec.reading import parse_json
root, source = Root(Path(sys.argv[1])), DataSource.model_validate(parse_json(sys.argv[2], "source"))
print(prepare(root, "openwebtext", source, digest(source, root)))
"""


def test_d01_openwebtext_out_of_a_folder_needs_no_library_of_data_sets(root: Root) -> None:
    put(root, TWENTY[:12], "texts/part-0.jsonl")
    put(root, TWENTY[12:], "texts/part-1.jsonl")
    owt = {"title": "OpenWebText", "licence": "CC0", "tokenizer": "gpt2"}
    arguments = [str(root.path), source_of(**owt).model_dump_json(exclude_none=True)]
    command = [sys.executable, "-c", WITHOUT_DATASETS, *arguments]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "manifest.json").is_file()


def test_d01_remote_code_cannot_be_asked_for() -> None:
    for key, value in (("trust_remote_code", True), ("script", "owt.py"), ("builder", "openwebtext")):
        with pytest.raises(ValueError, match="Extra inputs are not permitted"):
            source_of(**{key: value})


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.zst"])
def test_a_format_whose_package_is_absent_names_it(root: Root, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (root.path / "texts" / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingError, match="package pyarrow is not installed"):
        read(root)


# -- D03: shards -----------------------------------------------------------------------------------


@pytest.fixture
def case(root: Root) -> Root:
    for path in shared("cases/D03").iterdir():
        shutil.copyfile(path, root.path / "texts" / path.name)
    return root


def edit(root: Root, change: Callable[[dict[str, Any]], object]) -> None:
    path = root.path / "texts" / "manifest.json"
    value = json.loads(path.read_text("utf-8"))
    change(value)
    path.write_text(json.dumps(value), "utf-8")


SOURCE = source_of(validation=0.3, final_tokens=2)


def refusal(root: Root, source: DataSource = SOURCE) -> str:
    with pytest.raises(BadDataError) as caught:
        made(root, source)
    assert not (root.scratch / "data").exists() or not list((root.scratch / "data").glob("[0-9a-f]*"))
    return str(caught.value)


def test_d03_a_missing_shard_is_refused_with_what_is_left(case: Root) -> None:
    message = refusal(case)
    assert "texts: shard-00003.jsonl: is missing" in message
    assert "texts: documents: 5 of 6 are here" in message


def test_d03_without_the_third_shard_the_rest_is_accepted(case: Root) -> None:
    edit(case, lambda value: (value["sha256"].pop("shard-00003.jsonl"), value.update(shards=3, documents=5)))
    _, folder = made(case, SOURCE)
    assert json.loads((folder / "manifest.json").read_text("utf-8"))["documents_seen"] == 5


def test_d03_other_faults_of_the_kind(case: Root) -> None:
    edit(case, lambda value: (value["sha256"].pop("shard-00003.jsonl"), value.update(shards=3)))
    assert "documents: 5 documents found, 6 are pinned" in refusal(case)
    edit(case, lambda value: value.update(documents=5))
    with open(case.path / "texts" / "shard-00001.jsonl", "a", encoding="utf-8") as stream:
        stream.write(" ")
    changed = hashlib.sha256((case.path / "texts" / "shard-00001.jsonl").read_bytes()).hexdigest()
    assert f"shard-00001.jsonl: has sha256 {changed}, " in refusal(case)
    edit(case, lambda value: value["sha256"].update({"shard-00001.jsonl": changed}))
    put(case, ["one too many"], "texts/shard-00004.jsonl")
    assert "shard-00004.jsonl: is not in the manifest" in refusal(case)
    edit(case, lambda value: value.update(shards=4))
    assert "shards: is 4, but 3 files are named" in refusal(case)
