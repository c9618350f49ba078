"""Sets from their source to a checked folder of arrays and back, and what is refused on the way."""

from __future__ import annotations

import json
import os
import shutil
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from repro.data import arrays as arrays_module
from repro.data import sets
from repro.data.arrays import load_arrays, load_set_manifest, publish, set_problems, write_arrays
from repro.data.manifest import MANIFEST, data_folder
from repro.data.pins import write_pins
from repro.data.sets import check_prepared, load_labelled, load_series, prepare_set
from repro.spec.data import Sources
from repro.spec.data import digest as source_digest
from repro.spec.errors import BadDataError, CannotWriteError, ConfigError, MissingError
from repro.spec.hashing import sha256_file, sha256_json
from repro.spec.paths import Root
from repro.spec.reading import load
from repro.spec.sets import JENA_VARIABLES, LabelledSource, SeriesSource, SetSource, set_digest
from repro.verbs import data
from tests.shared import shared

WORDS = {"title": "t", "licence": "none"}
FETCH = {"files": [{"name": "a.csv", "url": "https://example.org/a.csv"}]}
CHECKOUT = Path(__file__).resolve().parents[2]
SETS = ("embedded_weather", "jena_2009_2016", "jena_2020", "embedded_sentences", "sst2", "sst2_original")


def series_source(**more: Any) -> SeriesSource:
    return SeriesSource.model_validate({"kind": "jena", "path": "mine.csv", "step_minutes": 10, **WORDS} | more)


def labelled_source(**more: Any) -> LabelledSource:
    return LabelledSource.model_validate({"kind": "sst2", "path": "mine", **WORDS} | more)


def configured(name: str, **more: Any) -> Any:
    """An entry of config/data.yaml, with other values for some keys."""
    source = load(Sources, CHECKOUT / "config" / "data.yaml").root[name]
    return type(source).model_validate(source.model_dump(exclude_unset=True) | more)


def embedded(kind: str) -> SetSource:
    source: SetSource = configured({"series": "embedded_weather", "labelled": "embedded_sentences"}[kind])
    return source


def put_series(root: Root, rows: int = 40, file: str = "mine.csv") -> None:
    """Rows of ten minutes with all 14 variables."""
    stamps = (np.datetime64("2009-01-01T00:00:00") + np.arange(rows) * np.timedelta64(600, "s")).astype(str)
    lines = [",".join([stamp.replace("T", " "), *(f"{row + place / 7:.3f}" for place in range(14))])
             for row, stamp in enumerate(stamps.tolist())]  # fmt: skip
    text = ",".join(["date", *JENA_VARIABLES]) + "\n" + "\n".join(lines) + "\n"
    (root.path / file).parent.mkdir(parents=True, exist_ok=True)
    (root.path / file).write_text(text, "utf-8")


def put_glue(root: Root, folder: str = "mine") -> None:
    place = root.path / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "train.tsv").write_text("sentence\tlabel\ngood film \t1\nbad film \t0\n", "utf-8")
    (place / "dev.tsv").write_text("sentence\tlabel\nFine  film\t1\ncaf\xe9\t0\n", "utf-8")
    (place / "test.tsv").write_text("index\tsentence\n0\tunknown\n", "utf-8")


def made(root: Root, source: SetSource, name: str = "mine") -> tuple[str, Path]:
    digest = set_digest(source, root)
    return digest, prepare_set(root, name, source, digest)


def left(root: Root) -> list[str]:
    place = root.scratch / "data"
    return sorted(path.name for path in place.iterdir() if ".lock-" not in path.name) if place.is_dir() else []


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def test_a_series_comes_back_as_it_was_prepared(root: Root) -> None:
    put_series(root)
    digest, folder = made(root, series_source())
    back = load_series(root, digest)
    assert {name: len(split.series.times) for name, split in back.splits.items()} == {"train": 28, "val": 4, "test": 8}
    train = back.splits["train"].series.values
    assert train[:2, 0].tolist() == [0.0, 1.0]
    assert back.scaler.columns == JENA_VARIABLES
    assert back.scaler.mean == pytest.approx(train.mean(axis=0), rel=1e-14)
    inputs, targets = back.windows("train", 24).arrays()
    assert inputs.shape == targets.shape == (4, 24, 14)
    manifest = load_set_manifest(root, digest)
    assert manifest["report"]["scaler"]["mean"] == back.scaler.mean.tolist()
    assert folder == data_folder(root, digest)
    assert set_problems(root, digest) == []


def test_preparing_again_gives_the_same_bytes(root: Root) -> None:
    put_series(root)
    digest, folder = made(root, series_source())
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    kept = folder.stat().st_ino
    prepare_set(root, "mine", series_source(), digest)
    assert folder.stat().st_ino == kept  # found whole, not made again
    shutil.rmtree(folder)
    prepare_set(root, "mine", series_source(), digest)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert left(root) == [folder.name]


@pytest.mark.parametrize("kind", ["series", "labelled"])
def test_embedded_sets_need_no_file_beside_the_packages(root: Root, kind: str) -> None:
    digest, _ = made(root, embedded(kind), "embedded")
    if kind == "series":
        back = load_series(root, digest)
        assert back.report["rows"] == {"train": 6132, "val": 876, "test": 1752}
        assert sum(back.report["blocks"].values()) == 14  # twelve months of years of their own, cut twice by the split
        assert back.windows("train", 24).draw(64, 0).arrays()[0].shape == (64, 24, 14)
    else:
        splits, manifest = load_labelled(root, digest)
        assert sum(len(part) for part in splits.values()) == 200
        assert 30 <= len(splits["dev"]) <= 50
        assert manifest["report"]["overlap"] == {"dev_exact": 0, "dev_folded": 0, "train_within": 0}


def test_the_real_2020_file_loses_its_sentinel_and_its_repeated_stamp_and_nothing_else(root: Root) -> None:
    path = shared("data/jena_climate/jena_2020_10min21.csv.gz")
    digest, _ = made(root, configured("jena_2020", path=str(path), step_minutes=10), "jena_2020")
    back = load_series(root, digest)
    assert back.report["rows_after_cleaning"] == 52_695
    assert {name: count for name, count in back.report["sentinels"].items() if count} == {"wv (m/s)": 1}
    assert (back.report["off_grid"], back.report["incomplete_rows"]) == (0, 1)
    assert sum(back.report["rows"].values()) == 52_694
    assert sum(back.report["blocks"].values()) == 3 + 2  # a gap, a lost row, two borders of splits
    assert all(np.abs(split.series.values).max() < 2000 for split in back.splits.values())


def test_the_real_sst2_is_the_one_that_the_configuration_pins(root: Root) -> None:
    digest, _ = made(root, configured("sst2", path=str(shared("data/sst2"))), "sst2")
    splits, manifest = load_labelled(root, digest)
    assert {name: (len(part), part.positive) for name, part in splits.items()} == {
        "train": (67_349, 37_569), "dev": (872, 444), "test": (1_821, 0),
    }  # fmt: skip
    assert manifest["report"]["overlap"] == {"dev_exact": 0, "dev_folded": 0, "train_within": 16}
    assert len(splits["train"].subset(512)) == 512


def test_canonical_jena_is_pinned_by_what_is_known_of_it(root: Root) -> None:
    source = configured("jena_2009_2016")
    assert source.pinned == {"rows": 420_551, "duplicates": 327}
    assert source.fetch.files[0].sha256 is None  # nobody has published one: the first download pins it
    assert len({source_digest(configured(name), root) for name in SETS}) == len(SETS)
    put_series(root, file="scratch/fetched/jena_2009_2016/part.csv")
    with pytest.raises(BadDataError, match="rows: is 40, 420551 is pinned"):
        made(root, source, "jena_2009_2016")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("step_minute: 10", 'a.yaml:5: mine.step_minute: unknown key; did you mean "step_minutes"?'),
        ("step_minutes: 0", "a.yaml:5: mine.step_minutes: 0: input should be greater than or equal to 1"),
        ("validation: 0.5", "leave nothing to test on"),
    ],
)
def test_a_slip_in_the_configuration_is_named_by_line_and_key(root: Root, line: str, said: str) -> None:
    path = root.path / "a.yaml"
    path.write_text(f"mine:\n  kind: jena\n  title: t\n  licence: l\n  {line}\n  train: 0.6\n  path: mine.csv\n")
    with pytest.raises(ConfigError) as caught:
        load(Sources, path, "a.yaml")
    assert len(caught.value.problems) == 1
    assert said in str(caught.value)


def test_labelled_sentences_come_back_with_counts_and_overlap(root: Root) -> None:
    put_glue(root)
    digest, _ = made(root, labelled_source())
    splits, manifest = load_labelled(root, digest)
    assert splits["dev"].sentences == ("Fine  film", "caf\xe9")
    assert splits["dev"].labels.tolist() == [1, 0]
    assert manifest["splits"]["train"]["positive"] == 1
    assert manifest["splits"]["test"]["labelled"] is False
    assert manifest["report"]["overlap"] == {"dev_exact": 0, "dev_folded": 0, "train_within": 0}
    with pytest.raises(BadDataError, match="score dev"):
        splits["test"].scored()


def test_d08_a_dev_sentence_in_training_is_refused(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    put_glue(root)
    (root.path / "mine" / "dev.tsv").write_text("sentence\tlabel\nok\t1\nGood  film\t1\nbad film\t0\n", "utf-8")
    said = [
        "source mine: leakage: validation sentence 2 is, but for case and blanks, training sentence 1",
        "source mine: leakage: validation sentence 3 is training sentence 2",
    ]
    with pytest.raises(BadDataError) as caught:
        made(root, labelled_source())
    assert [str(problem) for problem in caught.value.problems] == said
    assert left(root) == []
    monkeypatch.setattr(sets, "_refuse_overlap", lambda *_: None)
    digest, folder = made(root, labelled_source())  # as older versions left it
    assert load_set_manifest(root, digest)["report"]["overlap"]["dev_folded"] == 2
    monkeypatch.undo()
    monkeypatch.setattr(data, "_source", lambda name: (root, labelled_source()))
    out = root.path / "leakage.json"
    for use in (
        lambda: load_labelled(root, digest),  # what a run does
        lambda: made(root, labelled_source()),
        lambda: data.verify_source("mine"),
        lambda: data.leakage("mine", out),
    ):
        with pytest.raises(BadDataError) as caught:
            use()
        assert [str(problem) for problem in caught.value.problems] == said
    assert not out.exists()
    assert folder.is_dir()


def test_the_two_variants_of_sst2_are_different_sets(root: Root) -> None:
    (root.path / "trees").mkdir()
    for split in ("train", "dev", "test"):
        (root.path / "trees" / f"{split}.txt").write_text(f"(3 (2 good) (2 {split}))\n(0 (2 bad) (2 {split}))\n")
    put_glue(root)
    glue, trees = labelled_source(), labelled_source(kind="sst2_trees", path="trees")
    assert set_digest(glue, root) != set_digest(trees, root)
    splits, _ = load_labelled(root, made(root, trees, "sst2_original")[0])
    assert splits["test"].scored().sentences == ("good test", "bad test")
    with pytest.raises(BadDataError, match=r"is no series|form: is labelled, series is expected"):
        load_series(root, set_digest(trees, root))


def test_one_zip_holds_all_splits(root: Root) -> None:
    put_glue(root)
    with zipfile.ZipFile(root.path / "mine" / "SST-2.zip", "w") as archive:
        for split in ("train", "dev", "test"):
            archive.write(root.path / "mine" / f"{split}.tsv", f"SST-2/{split}.tsv")
    plain, _ = load_labelled(root, made(root, labelled_source())[0])
    for split in plain:
        (root.path / "mine" / f"{split}.tsv").unlink()
    packed, manifest = load_labelled(root, made(root, labelled_source())[0])
    assert {name: part.sentences for name, part in packed.items()} == {n: p.sentences for n, p in plain.items()}
    assert len(set(manifest["origin"].values())) == 3


def test_a_fetched_folder_must_hold_what_its_manifest_says(root: Root) -> None:
    place = root.path / "scratch/fetched/jena_2020"
    put_series(root, file="scratch/fetched/jena_2020/jena.csv")
    source = series_source(path=None, pinned={"rows": 40})
    write_pins(place, {"sha256": {"jena.csv": sha256_file(place / "jena.csv")}})
    digest, _ = made(root, source, "jena_2020")
    assert load_series(root, digest).report["rows_in"] == 40
    shutil.rmtree(root.scratch / "data")
    write_pins(place, {"sha256": {"jena.csv": "0" * 64}})
    with pytest.raises(BadDataError, match=r"jena\.csv: sha256: is .* is pinned"):
        made(root, source, "jena_2020")
    write_pins(place, {"sha256": {"other.csv": "0" * 64}})
    with pytest.raises(BadDataError, match=r"jena\.csv: is not named in manifest\.json"):
        made(root, source, "jena_2020")


def test_d03_a_manifest_beside_a_set_is_obeyed_to_the_word(root: Root) -> None:
    put_glue(root)
    place = root.path / "mine"
    good = {f"{split}.tsv": sha256_file(place / f"{split}.tsv") for split in ("train", "dev", "test")}
    fine, more, count = (
        {"sha256": good, "documents": 5},
        {"sha256": good | {"train2.tsv.gz": "0" * 64}},
        {"documents": 99},
    )
    write_pins(place, more)
    with pytest.raises(BadDataError, match=r"mine/train2\.tsv\.gz: is missing"):
        made(root, labelled_source())
    write_pins(place, fine | count)
    for pinned in ({}, {"train": 2}):
        with pytest.raises(BadDataError, match=r"mine/manifest\.json: documents: is 5, 99 is pinned"):
            made(root, labelled_source(pinned=pinned))
    assert left(root) == []
    write_pins(place, fine)
    digest, _ = made(root, labelled_source())
    for bad in (more, fine | count):  # also of what was prepared before
        write_pins(place, bad)
        with pytest.raises(BadDataError):
            check_prepared(root, "mine", labelled_source(), digest)
        with pytest.raises(BadDataError):
            made(root, labelled_source())


def test_a_digest_is_known_before_the_data_where_something_is_pinned(root: Root) -> None:
    pinned = {"rows": 420_551, "duplicates": 327}
    source = series_source(path=None, pinned=pinned)
    assert set_digest(source, root) == set_digest(series_source(path="elsewhere.csv", pinned=pinned, title="x"), root)
    others = [{"pinned": {"rows": 1}}, {"step_minutes": 60}, {"train": 0.6}, {"variables": ["T (degC)"]}]
    digests = {set_digest(series_source(**{"path": None, "pinned": pinned} | other), root) for other in others}
    assert len(digests | {set_digest(source, root)}) == 5
    with pytest.raises(
        MissingError, match=r"scratch/fetched/jena_2009_2016: jena_2009_2016 is not here; run: repro data fetch"
    ):
        prepare_set(root, "jena_2009_2016", source, set_digest(source, root))
    with pytest.raises(MissingError):
        set_digest(series_source(), root)
    (root.scratch / "fetched" / "jena_2009_2016").mkdir(parents=True)
    with pytest.raises(MissingError, match=r"holds no \*\.csv, .*; run: repro data fetch jena_2009_2016 "):
        prepare_set(root, "jena_2009_2016", source, set_digest(source, root))
    assert left(root) == []


def test_a_fetched_file_is_found_where_fetching_puts_it(root: Root) -> None:
    put_series(root, file="scratch/fetched/jena_2020/jena.csv")
    digest, _ = made(root, series_source(path=None, pinned={"rows": 40}), "jena_2020")
    assert load_series(root, digest).report["rows_in"] == 40


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        ({"rows": 41}, "rows: is 40, 41 is pinned"),
        ({"duplicates": 3}, "duplicates: is 0, 3 is pinned"),
        ({"sha256": "0" * 64}, "sha256: is "),
    ],
)
def test_a_series_that_is_not_the_pinned_one_is_refused(root: Root, pinned: dict[str, Any], said: str) -> None:
    put_series(root)
    with pytest.raises(BadDataError, match=f"mine.csv: {said}"):
        made(root, series_source(pinned=pinned))
    assert left(root) == []


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        ({"train": 3}, "train: is 2, 3 is pinned"),
        ({"dev_positive": 2}, "dev_positive: is 1, 2 is pinned"),
        ({"test_sha256": "0" * 64}, "test.tsv: sha256: is "),
    ],
)
def test_sentences_that_are_not_the_pinned_ones_are_refused(root: Root, pinned: dict[str, Any], said: str) -> None:
    put_glue(root)
    with pytest.raises(BadDataError, match=said):
        made(root, labelled_source(pinned=pinned))


def test_training_or_dev_without_labels_is_refused(root: Root) -> None:
    put_glue(root)
    shutil.copy(root.path / "mine" / "test.tsv", root.path / "mine" / "dev.tsv")
    with pytest.raises(BadDataError, match="dev: has no labels"):
        made(root, labelled_source())


def test_a_source_that_changed_since_the_plan_is_refused(root: Root) -> None:
    put_series(root)
    digest = set_digest(series_source(), root)
    put_series(root, rows=50)
    with pytest.raises(BadDataError, match="the source changed"):
        prepare_set(root, "mine", series_source(), digest)
    assert left(root) == []


def test_files_that_lead_elsewhere_or_are_none(root: Root) -> None:
    put_series(root, file="outside.csv")
    folder = root.path / "mine"
    folder.mkdir()
    source = series_source(path="mine")
    with pytest.raises(MissingError, match=r"holds no \*\.csv, \*\.csv\.gz or \.zip"):
        set_digest(source, root)
    (folder / "a.csv").symlink_to(root.path / "outside.csv")
    with pytest.raises(BadDataError, match="a link that leads out of the folder"):
        set_digest(source, root)
    (folder / "a.csv").unlink()
    (folder / "a.csv").symlink_to("a.csv")
    with pytest.raises(BadDataError, match="a link that leads out of the folder"):
        set_digest(source, root)
    (folder / "a.csv").unlink()
    os.mkfifo(folder / "a.csv")
    with pytest.raises(BadDataError, match="is no regular file"):
        set_digest(source, root)
    put_series(root, file="mine/b.csv")
    with pytest.raises(BadDataError, match=r"holds several files for \*\.csv: a\.csv, b\.csv"):
        set_digest(source, root)
    with pytest.raises(MissingError):
        set_digest(series_source(path="x" * 900), root)


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": None},
        {"kind": "pvlib_weather", "path": None},
        {"train": 0.9},
        {"train": 0.0},
        {"variables": []},
        {"variables": ["T", "T"]},
        {"step_minutes": 0},
        {"unknown": 1},
        {"kind": "pvlib_weather", "dist": "pvlib", "sha256": "0" * 64, "file": "a", "fetch": FETCH},
        {"kind": "pvlib_weather", "dist": "pvlib", "sha256": "0" * 64, "file": "../../etc/passwd"},
        {"kind": "pvlib_weather", "dist": "pvlib", "sha256": "0" * 64, "file": "a/../b"},
    ],
)
def test_sources_that_say_too_little_or_too_much(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        series_source(**wrong)


def test_validation_belongs_to_what_has_no_splits() -> None:
    with pytest.raises(ValidationError, match="comes without splits"):
        labelled_source(validation=0.1)
    with pytest.raises(ValidationError, match="comes without splits"):
        labelled_source(kind="gensim_sentences", dist="a", file="b", sha256="0" * 64)


def test_a_package_with_another_file_is_refused(root: Root) -> None:
    source = embedded("series").model_copy(update={"sha256": "0" * 64})
    with pytest.raises(BadDataError, match=r"723170TYA\.CSV: sha256: is 1e96f.* is pinned"):
        made(root, source)


def test_what_was_altered_is_found_and_made_again(root: Root) -> None:
    put_series(root)
    digest, folder = made(root, series_source())
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "train_values.npy").write_bytes(first["train_values.npy"][:-1] + b"x")
    (folder / "val_values.npy").write_bytes(first["val_values.npy"][:100])
    (folder / "test_times.npy").unlink()
    said = {problem.file.split("/")[-1]: problem.message for problem in set_problems(root, digest)}
    assert said["train_values.npy"] == "is not what the manifest says: altered"
    assert said["val_values.npy"] == "has 100 bytes, 448 and a header are expected"
    assert said["test_times.npy"] == "is not there"
    assert prepare_set(root, "mine", series_source(), digest) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert left(root) == [folder.name]


def test_a_manifest_that_was_altered_is_not_believed(root: Root) -> None:
    put_series(root)
    digest, folder = made(root, series_source())
    text = (folder / MANIFEST).read_text()
    manifest = json.loads(text)

    def said(change: dict[str, Any], seal: bool = True) -> str:
        changed = {key: value for key, value in (manifest | change).items() if key != "sha256"}
        sealed = changed | {"sha256": sha256_json(changed) if seal else manifest["sha256"]}
        (folder / MANIFEST).write_text(json.dumps(sealed))
        return str(set_problems(root, digest)[0])

    assert "altered" in said({"source": "other"}, seal=False)
    assert "not of" in said({"digest": "0" * 64})
    assert "form" in said({"form": "text"})
    assert "extra" in said({"more": 1}).lower()
    info = manifest["arrays"]["train_values"]
    assert "dtype" in said({"arrays": manifest["arrays"] | {"train_values": info | {"dtype": "|O"}}})
    assert "arrays" in said({"arrays": {"../../x": info}})
    assert "bytes" in said({"arrays": manifest["arrays"] | {"train_values": info | {"shape": [1 << 40, 14]}}})
    assert "not what the manifest says" in said(
        {"arrays": manifest["arrays"] | {"train_values": info | {"shape": info["shape"][::-1]}}}
    )
    (folder / MANIFEST).write_text(text.replace("{", "[", 1))
    assert "not JSON" in str(set_problems(root, digest)[0])


def test_a_pickle_is_never_loaded(root: Root) -> None:
    put_series(root)
    digest, folder = made(root, series_source())
    with open(folder / "train_blocks.npy", "wb") as stream:
        np.save(stream, np.array([{"a": 1}], object), allow_pickle=True)
    assert set_problems(root, digest)
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_arrays(root.path, {"x": np.array([object()])}, {})


def test_links_and_strangers_in_the_place_of_a_set_are_left_alone(root: Root) -> None:
    put_series(root)
    digest = set_digest(series_source(), root)
    folder = data_folder(root, digest)
    folder.parent.mkdir(parents=True)
    (root.path / "other").mkdir()
    folder.symlink_to(root.path / "other")
    with pytest.raises(BadDataError, match="is no folder but a link or a file"):
        prepare_set(root, "mine", series_source(), digest)
    assert list((root.path / "other").iterdir()) == []


def test_a_failed_build_and_a_killed_one_leave_nothing(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = "ab" * 32
    folder = data_folder(root, digest)

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CannotWriteError, match="No space left on device"):
        publish(root, digest, full)
    assert left(root) == []
    leftover = folder.with_name(f".tmp-{folder.name}-1")
    leftover.mkdir()
    (leftover / "train_values.npy").write_bytes(b"half")
    fields = {"form": "series", "source": "mine", "digest": digest, "origin": {}, "splits": {}, "report": {}}
    publish(root, digest, lambda place: write_arrays(place, {"x": np.arange(3)}, fields))
    assert left(root) == [folder.name]
    assert load_arrays(root, digest)[1]["x"].tolist() == [0, 1, 2]

    usage = shutil.disk_usage(root.path)._replace(free=1000)
    monkeypatch.setattr(arrays_module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CannotWriteError, match="MB are needed, 0 MB are free"):
        publish(root, "cd" * 32, lambda place: write_arrays(place, {"x": np.arange(3)}, fields))


def test_two_at_once_make_it_once(root: Root) -> None:
    put_series(root)
    digest = set_digest(series_source(), root)
    makers = [threading.Thread(target=prepare_set, args=(root, "mine", series_source(), digest)) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert set_problems(root, digest) == []
    assert left(root) == [data_folder(root, digest).name]


def test_what_is_not_prepared_says_how_to_prepare_it(root: Root) -> None:
    with pytest.raises(MissingError, match="run: repro data prepare"):
        load_series(root, "0" * 64)
