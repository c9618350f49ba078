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
        ({"link": "javascript:alert(1)"}, "starts with https"),
        ({"files": ["../up.json"]}, "outside the submission"),
        ({"note": "a\nb\u202ec"}, "plain text on one line"),
        ({"mean": 3.0}, "mean"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    found = problems(hand_in(tmp_path, GOOD | changes, LOGS))
    assert any(message in text for text in found), found


def test_a_hostile_submission_is_refused_and_nothing_of_it_is_followed(tmp_path: Path) -> None:
    raw = json.loads((shared("cases/S10") / "submission.json").read_text("utf-8"))
    found = "\n".join(problems(hand_in(tmp_path, raw, LOGS)))
    for part in ("method", "author", "link", "../../etc/passwd", "/abs/path.json", "note"):
        assert part in found
    assert "ok.json" not in found
    assert all(letter.isprintable() for letter in found.replace("\n", ""))


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "way").symlink_to(tmp_path)
    assert "outside" in "".join(problems(hand_in(inner, GOOD | {"files": ["way/secret"]}, LOGS)))
    (inner / "logs.json").rename(tmp_path / "logs.json")
    (inner / "logs.json").symlink_to(tmp_path / "logs.json")
    assert "symbolic link" in "".join(problems(inner))


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
