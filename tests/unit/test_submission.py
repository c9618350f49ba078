"""Cases S08 and S10: what others hand in is read, never believed and never followed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.spec.errors import BadDataError, ReproError
from repro.stats.submission import check_submission
from tests.conftest import Checkout
from tests.shared import shared

GOOD = {"method": "m1", "claimed_mean_val_loss": 3.27, "claimed_ppl": 26.31, "seeds": [1, 2], "config_sha": "aaaa"}
LOGS = [{"seed": seed, "val_loss": 3.27, "config_sha": "aaaa"} for seed in (1, 2)]


def hand_in(folder: Path, submission: Any, logs: Any) -> Path:
    (folder / "submission.json").write_text(json.dumps(submission), "utf-8")
    (folder / "logs.json").write_text(json.dumps(logs), "utf-8")
    return folder


def problems(folder: Path) -> list[str]:
    try:
        check_submission(folder)
    except BadDataError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_numbers_that_follow_pass(tmp_path: Path) -> None:
    assert problems(hand_in(tmp_path, GOOD, LOGS)) == []


def test_claimed_numbers_that_do_not_follow_are_all_told_at_once() -> None:
    case = shared("cases/S08")
    found = "\n".join(problems(case))
    expected = json.loads((case / "expected.json").read_text("utf-8"))["refused_for"]
    assert len(expected) == 3
    assert "claimed mean 3.270, logs give 3.291" in found
    assert "exp(3.291)=26.87" in found
    assert "seed 3 ran another configuration" in found
    assert found.count("\n") == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"claimed_mean_val_loss": 3.28}, "logs give 3.270"),
        ({"claimed_ppl": 25.0}, "exp(3.270)=26.31"),
        ({"seeds": [1, 2, 3]}, "logs are of [1, 2]"),
        ({"config_sha": "bbbb"}, "seed 2 ran another configuration"),
        ({"method": "M 1"}, "method"),
        ({"link": "javascript:alert(1)"}, "link"),
        ({"files": ["../up.json"]}, "no plain path in the submission's folder"),
        ({"note": "a\nb\u202ec"}, "plain text on one line"),
        ({"mean": 3.0}, "mean"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    found = problems(hand_in(tmp_path, GOOD | changes, LOGS))
    assert any(message in text for text in found), found


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/etc/passwd",
        "../x.json",
        "a/../x.json",
        "..\\..\\x.json",
        "C:\\x.json",
        "file:///etc/passwd",
        "<b>.json",
        "x.json\n",
        "model.pt",
        "evil.yaml",
        "x.py",
        ".hidden.json",
        "x" * 300 + ".json",
        3,
        None,
    ],
)
def test_files_are_plain_names_of_what_nothing_runs(tmp_path: Path, name: object) -> None:
    found = problems(hand_in(tmp_path, GOOD | {"files": [name]}, LOGS))
    assert any(": files: " in text and "is no plain path" in text for text in found), found


def test_files_that_are_named_are_there(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "curve.csv").write_text("x", "utf-8")
    assert problems(hand_in(tmp_path, GOOD | {"files": ["sub/curve.csv", "logs.json"]}, LOGS)) == []
    found = problems(hand_in(tmp_path, GOOD | {"files": ["curve.csv", "sub"]}, LOGS))
    assert "submission.json: files: curve.csv is not there" in found
    assert len(found) == 2


@pytest.mark.parametrize("name", ["model.pt", "evil.yaml", "sub/run.py", "weights"])
def test_case_s10_a_file_that_may_run_code_is_refused_named_or_not(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"!!python/object/apply:os.system [x]")
    assert problems(hand_in(tmp_path, GOOD, LOGS)) == [f"{name}: is no file that ends in .json, .csv, .txt, .md"]


@pytest.mark.parametrize("target", ["/etc", "logs.json", "nowhere", "way", "/etc/passwd"])
def test_case_s10_a_link_in_the_folder_is_refused_named_or_not(tmp_path: Path, target: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "way").symlink_to(target)
    assert problems(hand_in(tmp_path, GOOD, LOGS)) == ["sub/way: is a symbolic link"]


@pytest.mark.parametrize(
    "link",
    [
        'https://x/"><script>',
        "https://x/\ny",
        "https://x/\u202e",
        "ftp://x",
        "https://",
        "http://x y",
        "//x",
        "https://x/`",
        "https://x/" + "y" * 600,
        "https://u:p@x",
        "data:text/html,x",
        "HTTPS://x",
        "https://x/)",
    ],
)
def test_a_link_is_a_plain_web_address(tmp_path: Path, link: str) -> None:
    (found,) = problems(hand_in(tmp_path, GOOD | {"link": link}, LOGS))
    assert found.startswith("submission.json: link: ")
    assert len(found) < 300


@pytest.mark.parametrize("link", ["", "https://a.example", "http://a.example:80/b/c_d-1.html?x=1&y=%20#top"])
def test_a_web_address_passes(tmp_path: Path, link: str) -> None:
    assert problems(hand_in(tmp_path, GOOD | {"link": link}, LOGS)) == []


def test_no_loss_is_negative(tmp_path: Path) -> None:
    below = [log | {"val_loss": -3.27} for log in LOGS]
    found = "\n".join(problems(hand_in(tmp_path, GOOD | {"claimed_mean_val_loss": -3.27}, below)))
    for place in ("logs.json[0]: val_loss", "logs.json[1]: val_loss", "submission.json: claimed_mean_val_loss"):
        assert f"{place}: -3.27: input should be greater than or equal to 0" in found


def test_however_much_is_wrong_little_is_said(tmp_path: Path) -> None:
    bad = [{"seed": place, "val_loss": "x", "config_sha": 3, "more": 1} for place in range(5000)]
    found = problems(hand_in(tmp_path, GOOD | {"files": ["x.pt"] * 1000}, bad))
    assert len(found) <= 201
    assert any("more problems" in text for text in found)
    huge = [log | {"val_loss": 690.0 + place} for place, log in enumerate(LOGS)]
    for logs in (huge, [log | {"val_loss": 1e299} for log in LOGS]):
        found = problems(hand_in(tmp_path, GOOD | {"claimed_mean_val_loss": 1e298, "claimed_ppl": 1e297}, logs))
        assert len(found) == 2
        assert all(len(text) < 150 for text in found)
    (found,) = problems(hand_in(tmp_path, GOOD | {"seeds": [10**299]}, LOGS))
    assert len(found) < 300


def test_a_hostile_submission_is_refused_and_nothing_of_it_is_followed(tmp_path: Path) -> None:
    raw = json.loads((shared("cases/S10") / "submission.json").read_text("utf-8"))
    found = "\n".join(problems(hand_in(tmp_path, raw, LOGS)))
    for part in ("method", "author", "link", "../../etc/passwd", "/abs/path.json", "note"):
        assert part in found
    assert "ok.json is not there" in found
    assert all(letter.isprintable() for letter in found.replace("\n", ""))


def test_links_in_place_of_the_two_files_are_not_read(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    hand_in(inner, GOOD, LOGS)
    (inner / "logs.json").rename(tmp_path / "logs.json")
    (inner / "logs.json").symlink_to(tmp_path / "logs.json")
    assert problems(inner) == ["logs.json: is a symbolic link"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*GOOD, "files", "x"]), inner),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(JSON, JSON, st.dictionaries(st.sampled_from([*GOOD, "files", "note", "link"]), JSON, max_size=3))
def test_whatever_is_handed_in_is_read_or_refused(tmp_path_factory, raw: Any, logs: Any, changes: Any) -> None:
    folder = tmp_path_factory.mktemp("in")
    for submission in (raw, GOOD | changes):
        hand_in(folder, submission, logs)
        with suppress(ReproError):  # anything else would be a traceback
            assert check_submission(folder).method


def test_the_verb_tells_all_problems_of_a_submission_and_copies_nothing(
    checkout: Checkout, repro_main: Callable[..., tuple[int, str, str]]
) -> None:
    folder = shared("cases/S08")
    for verb in ("validate", "import"):
        code, out, err = repro_main(checkout, "records", verb, str(folder))
        assert (code, out) == (65, "")
        assert len(err.splitlines()) >= 3
        assert "Traceback" not in err
    assert not (checkout.path / "results").exists()
