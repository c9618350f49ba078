"""The strict reader: one meaning for every file, bounded work, and messages with file, line and key."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from repro.spec.errors import BadDataError, ConfigError, MissingError, Problem, ReproError, shown, suggest
from repro.spec.hashing import canonical, sha256_json
from repro.spec.model import Float, Int, Strict
from repro.spec.overrides import load_merged
from repro.spec.reading import MAX_DEPTH, MAX_JSON_BYTES, MAX_YAML_BYTES, load, parse_json, read_json, read_yaml
from tests.conftest import shared_case


def yaml_of(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "file.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(tmp_path: Path, text: str | bytes) -> str:
    """The message with which a YAML text is refused."""
    with pytest.raises(ConfigError) as caught:
        read_yaml(yaml_of(tmp_path, text), "f.yaml")
    return str(caught.value)


class Numbers(Strict):
    lr: Float
    lr_b: Float
    lr_c: Float
    steps: Int
    warmup: Int
    clip: Float
    eps: Float
    betas: list[Float]


def test_case_c01_every_spelling_is_a_number_and_has_one_identity() -> None:
    document = read_yaml(shared_case("C01/config.yaml"))
    assert not [key for key, value in document.value.items() if isinstance(value, str)]
    read = load(Numbers, shared_case("C01/config.yaml"))
    assert (read.steps, type(read.steps)) == (100000, int)
    assert (read.warmup, read.clip, read.eps, read.betas) == (2000, 0.5, 1e-8, [0.9, 0.95])
    assert len({sha256_json(value) for value in (read.lr, read.lr_b, read.lr_c)}) == 1


def test_case_c01_through_an_experiment(tmp_path: Path) -> None:
    """The same rate and length in three spellings give one identity; a value that is another number does not."""
    from repro.spec.experiment import LmExperiment

    def identity(lr: str, tokens: str) -> str:
        text = (
            "name: e\ntask: lm\nmodel: gpt_d64_l4\ndata: embedded_lm\nbatch_tokens: 1024\nseeds: 1\nmetrics: val_loss\n"
            f"tokens: {tokens}\noptimizer: {{name: adamw, lr: {lr}, weight_decay: 0}}\n"
        ).replace("metrics: val_loss", "metrics: [val_loss]")
        return sha256_json(load(LmExperiment, yaml_of(tmp_path, text)).model_dump())

    same = {identity(lr, n) for lr in ("1e-4", "0.0001", "1.0e-4", "[1E-4]") for n in ("1e5", "100_000", "100000.0")}
    assert len(same) == 1
    assert identity("1.1e-4", "1e5") not in same


def test_case_c02_words_that_other_readers_take_for_something_else_are_refused_by_line() -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml(shared_case("C02/config.yaml"), "c.yaml")
    found = {problem.key: (problem.line, problem.message) for problem in caught.value.problems}
    assert found.keys() == {"norm", "final_norm", "schedule", "seed"}
    assert [found[key][0] for key in ("norm", "final_norm", "schedule", "seed")] == [1, 2, 5, 6]
    assert 'quote it ("off")' in found["norm"][1]
    assert all("base-60" in found[key][1] for key in ("schedule", "seed"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("None", "None"),
        ("null", None),
        ("", None),
        ("~", None),
        ("true", True),
        ("False", False),
        ("'off'", "off"),
        ('"010"', "010"),
        ("! 10", "10"),
        ("truely", "truely"),
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("+3", 3),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("0", 0),
        ("-0.0", -0.0),
        ("2_000", 2000),
        ("1_0.2_5", 10.25),
        ("12e03", 12000.0),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("1e", "1e"),
        ("nanx", "nanx"),
        ("2020-13", "2020-13"),
        ("a:b", "a:b"),
        ("=", "="),
    ],
)
def test_plain_words(tmp_path: Path, text: str, value: object) -> None:
    read = read_yaml(yaml_of(tmp_path, f"a: {text}")).value["a"]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((word, "quote it") for word in ("on", "Off", "YES", "No", "y", "N", "yes", "oFF")),
        *((word, "base-60") for word in ("010", "0o17", "0x1F", "0b11", "190:20:30", "1:30", "-01", "0_1")),
        *((word, "finite") for word in (".inf", "-.INF", "+.Inf", ".nan", ".NaN")),
        *((word, "date") for word in ("2001-01-01", "2001-1-1", "2001-12-14t21:59:43.10-05:00", "2001-12-14 21:59")),
        *((word, "not a number that can be read") for word in ("1__0", "1_", "1_.5", "1._5", "1e999", "-1e999")),
        ("9" * 5000, "not a number that can be read"),
        ("0." + "1" * 5000, "not a number that can be read"),
    ],
)
def test_words_with_two_meanings_and_numbers_that_are_none_are_refused(tmp_path: Path, text: str, says: str) -> None:
    message = refused(tmp_path, f"ok: 1\na: {text}\n")
    assert message.startswith("f.yaml:2: a: ")
    assert says in message
    assert len(message) < 250


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &x 1\nb: *x", "f.yaml:1: anchors and aliases"),
        ("a: [&x 1]", "anchors"),
        ("&k a: 1", "anchors"),
        ("a: *nowhere", "anchors"),
        ("a: !!python/object/apply:os.system [echo]", "the tag tag:yaml.org,2002:python/object/apply:os.system"),
        ("a: !!python/name:os.system ''", "the tag"),
        ("!!python/object:x {a: 1}", "the tag"),
        ("a: !!str 3", "the tag"),
        ("a: !local x", "the tag"),
        ("!!python/name:os.system x: 1", "the tag"),
        ("a: 1\nb:\n  c: 2\na: 3", "f.yaml:4: a: stands twice"),
        ("b:\n  c: 2\n  d: 1\n  c: 2", "f.yaml:4: b.c: stands twice"),
        ("a: 1\n---\nb: 2", "one document"),
        ("? [a, b]\n: 1", "a key must be a plain word"),
        ("? {a: 1}\n: 1", "a key must be a plain word"),
        ("a: [1, 2", "f.yaml:"),
        ("a: 'open", "f.yaml:"),
        ("\ta: 1", "f.yaml:1"),
        ("a: b: c", "f.yaml:1"),
        ('a: "\\ud800"', "f.yaml:1"),
        (b"a: \xe9", "not UTF-8 text at byte 3"),
        (b"\xff\xfea\x00", "not UTF-8"),
        (b"a: \x00", "f.yaml"),
        ("a: \x07", "f.yaml"),
        ("x" * (MAX_YAML_BYTES + 1), f"larger than {MAX_YAML_BYTES} bytes"),
        ("[" * 10_000, "nest"),
        ("[" * 10_000 + "]" * 10_000, "nest"),
        ("{a: " * 10_000 + "1" + "}" * 10_000, "nested deeper than"),
        ("- " * 10_000 + "1", "nested deeper than"),
        ("\n".join(" " * level + "a:" for level in range(500)), "nested deeper than"),
        ("[" * (MAX_YAML_BYTES - 1), "nest"),
    ],
)
def test_tricks_are_refused_at_once(tmp_path: Path, text: str | bytes, says: str) -> None:
    started = time.perf_counter()
    assert says in refused(tmp_path, text)
    assert time.perf_counter() - started < 5


def test_nothing_runs_while_a_file_is_read(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    refused(tmp_path, f"a: !!python/object/apply:os.system ['touch {mark}']")
    assert not mark.exists()


def test_depth_up_to_the_limit_is_read(tmp_path: Path) -> None:
    assert read_yaml(yaml_of(tmp_path, "[" * MAX_DEPTH + "]" * MAX_DEPTH)).value
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH, "f")


def test_all_problems_are_told_at_once_in_order(tmp_path: Path) -> None:
    text = "a: off\nb:\n  - 010\n  - 1:30\nc: 2001-01-01\nc: .inf\n"
    assert [line.split(" ")[0:2] for line in refused(tmp_path, text).splitlines()] == [
        ["f.yaml:1:", "a:"],
        ["f.yaml:3:", "b.0:"],
        ["f.yaml:4:", "b.1:"],
        ["f.yaml:5:", "c:"],
        ["f.yaml:6:", "c:"],
        ["f.yaml:6:", "c:"],
    ]


@pytest.mark.parametrize("name", ["none.yaml", "folder", "x" * 300 + ".yaml", "a\0b.yaml"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError):
        read_yaml(tmp_path / name)
    with pytest.raises(BadDataError):
        read_json(tmp_path / name)


# Case C03: typed, deep, and every value knows where it came from.
class Norm(Strict):
    place: str
    eps: Float


class Model(Strict):
    n_layer: Int
    n_head: Int
    norm: Norm


class Train(Strict):
    lr: Float
    seed: Int


class Both(Strict):
    model: Model
    train: Train


def test_case_c03_a_typo_in_an_override_is_refused_with_the_near_name() -> None:
    paths = [shared_case("C03/base.yaml"), shared_case("C03/override.yaml")]
    with pytest.raises(ConfigError) as caught:
        load_merged(Both, paths, ["base.yaml", "over.yaml"])
    assert [str(problem) for problem in caught.value.problems] == [
        'over.yaml:1: model.n_layr: unknown key; did you mean "n_layer"? known: n_head, n_layer, norm'
    ]


def test_case_c03_mended_it_replaces_single_values_and_keeps_their_places(tmp_path: Path) -> None:
    mended = yaml_of(
        tmp_path, "# mended\n" + shared_case("C03/override.yaml").read_text("utf-8").replace("n_layr", "n_layer")
    )
    merged, document = load_merged(Both, [shared_case("C03/base.yaml"), mended], ["base.yaml", "over.yaml"])
    assert (merged.model.n_layer, merged.model.n_head) == (24, 12)
    assert (merged.model.norm.place, merged.model.norm.eps) == ("post", 1e-5)
    assert merged.train.lr == 3e-4
    places = {".".join(map(str, path)): document.place(path) for path in document.places if path}
    assert places == {
        "model": ("base.yaml", 1),
        "model.n_layer": ("over.yaml", 2),
        "model.n_head": ("base.yaml", 1),
        "model.norm": ("base.yaml", 1),
        "model.norm.place": ("over.yaml", 2),
        "model.norm.eps": ("base.yaml", 1),
        "train": ("base.yaml", 2),
        "train.lr": ("base.yaml", 2),
        "train.seed": ("base.yaml", 2),
    }


def test_an_override_replaces_lists_whole_and_forgets_what_was_below(tmp_path: Path) -> None:
    class Lists(Strict):
        a: list[Int]
        b: dict[str, Int] | Int

    (tmp_path / "base.yaml").write_text("a: [1, 2,\n  3]\nb: {c: 1}\n")
    (tmp_path / "over.yaml").write_text("\na: [7]\nb: 5\n")
    merged, document = load_merged(Lists, [tmp_path / "base.yaml", tmp_path / "over.yaml"], ["base", "over"])
    assert (merged.a, merged.b) == ([7], 5)
    assert ("a", 2) not in document.places
    assert ("b", "c") not in document.places
    assert document.place(("a", 0)) == ("over", 2)


def test_an_empty_override_changes_nothing(tmp_path: Path) -> None:
    """A settings file with comments only."""
    (tmp_path / "over.yaml").write_text("# nothing yet\n")
    merged, _ = load_merged(Both, [shared_case("C03/base.yaml"), tmp_path / "over.yaml"])
    assert merged.model.n_layer == 12


@pytest.mark.parametrize("key", ["none", "str", "int", "bool", "float", "list[x]", "dict-1", "[key]", "function-x"])
def test_an_unknown_key_is_named_whatever_it_is_called(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Norm, yaml_of(tmp_path, f"place: pre\neps: 1e-5\n'{key}': 1"), "f.yaml")
    assert str(caught.value) == f"f.yaml:3: {key}: unknown key; known: eps, place"


def test_missing_keys_and_wrong_types_are_told_together(tmp_path: Path) -> None:
    text = "model:\n  n_layer: '24'\n  n_head: true\n  norm:\n    place: 3\n    eps: 1.5\ntrain:\n  seed: 1.5\n"
    with pytest.raises(ConfigError) as caught:
        load(Both, yaml_of(tmp_path, text), "f.yaml")
    found = {(problem.line, problem.key): problem.message for problem in caught.value.problems}
    assert set(found) == {
        (2, "model.n_layer"),
        (3, "model.n_head"),
        (5, "model.norm.place"),
        (7, "train.lr"),
        (8, "train.seed"),
    }
    assert found[2, "model.n_layer"] == "24: a number is expected, without quotes"
    assert found[7, "train.lr"] == "is missing"
    assert "whole number" in found[8, "train.seed"]


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e301, float("inf"), float("nan"), True, "1", None])
def test_numbers_beyond_reason_are_no_numbers(value: object) -> None:
    from pydantic import ValidationError

    for kind in (Int, Float):

        class One(Strict):
            a: kind  # type: ignore[valid-type]

        with pytest.raises(ValidationError):
            One.model_validate({"a": value})


# JSON
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": NaN}', "NaN is not JSON"),
        ("[Infinity]", "Infinity is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("[1e999]", "1e999 is too large"),
        ("[-1e999]", "too large"),
        ('{"key": 1, "b": 2, "key": 3}', "key stands twice"),
        ('{"a": {"b": 1, "b": 1}}', "b stands twice"),
        ("[" * 10_000 + "]" * 10_000, "nested deeper"),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, "nested deeper"),
        ("[" * 10_000, "nested deeper"),
        ('["' + "]" * 100_000 + '"' + "[" * 100 + "]" * 100 + "]", "nested deeper"),
        ("[" + "9" * 5000 + "]", ""),
        ("", "f.json:1: not JSON"),
        ('{"a": 1,}', "not JSON"),
        ("{'a': 1}", "not JSON"),
        ("[1] [2]", "not JSON"),
        ('"\\ud800"', "surrogates"),
        ('{"\\udfff": 1}', "surrogates"),
        ('"abc\\', "not JSON"),
        ("\ufeff{}", "not JSON"),
        ('\n\n{"a": tru}', "f.json:3: not JSON"),
    ],
)
def test_json_tricks_are_refused(text: str, says: str) -> None:
    with pytest.raises(BadDataError) as caught:
        parse_json(text, "f.json")
    assert str(caught.value).startswith("f.json:")
    assert says in str(caught.value)
    assert len(str(caught.value)) < 200


def test_json_sizes_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(b'"' + b"x" * MAX_JSON_BYTES + b'"')
    with pytest.raises(BadDataError, match="larger than"):
        read_json(path)
    path.write_bytes(b'"\xff"')
    with pytest.raises(BadDataError, match="not UTF-8 text at byte 1"):
        read_json(path)


@pytest.mark.parametrize(
    "text",
    [
        '"' + '\\"' * 1_000_000 + "\\",
        '"' + "\\\\" * 1_000_000,
        '{"a":' + '"\\"' * 300_000,
        "[" + ",".join(f'{{"{n}":0}}' for n in range(100_000)),
        "{" + ",".join(f'"{n}":0' for n in range(150_000)) + ',"149999":0}',
    ],
)
def test_no_json_text_takes_more_than_a_moment(text: str) -> None:
    started = time.perf_counter()
    with pytest.raises(BadDataError):
        parse_json(text, "f.json")
    assert time.perf_counter() - started < 5


def test_brackets_inside_strings_are_not_nesting() -> None:
    assert parse_json('["' + "[" * 1000 + '", "\\"' + "{" * 1000 + '"]', "f") == ["[" * 1000, '"' + "{" * 1000]


NUMBERS = st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Co", "Cn")), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


class Quoting(yaml.SafeDumper):
    """Writes every text in quotes: YAML 1.1 leaves words such as 1e5 plain, which 1.2 reads as numbers."""


Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


@given(st.dictionaries(TEXTS, VALUES, max_size=6))
def test_what_is_written_as_json_reads_back_equal(value: dict[str, Any]) -> None:
    text = json.dumps(value)
    assert canonical(parse_json(text, "f")) == canonical(value)


@given(st.dictionaries(TEXTS, VALUES, max_size=6), st.booleans())
def test_what_is_written_as_yaml_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, value: Any, flow: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.yaml"
    path.write_text(yaml.dump(value, Dumper=Quoting, default_flow_style=flow, allow_unicode=True), "utf-8")
    document = read_yaml(path)
    assert canonical(document.value) == canonical(value)


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(data)
    for read in (read_yaml, read_json):
        try:
            read(path)
        except ReproError:
            continue


@given(st.text(max_size=200))
def test_text_of_any_kind_is_read_or_refused_as_an_experiment(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    from repro.spec.experiment import LmExperiment

    path = tmp_path_factory.getbasetemp() / "noise.yaml"
    path.write_text(text, "utf-8", "surrogatepass")
    with pytest.raises(ConfigError):
        load(LmExperiment, path)


def test_canonical_json_is_one_line_sorted_and_finite() -> None:
    assert canonical({"b": [1, 1.0], "a": "é"}) == '{"a":"\\u00e9","b":[1,1.0]}'
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            canonical([value])


def test_problems_are_sorted_once_each_and_have_exit_codes() -> None:
    twice = [
        Problem("b", 2, "k", "m"),
        Problem("a", None, "", "x"),
        Problem("b", 2, "k", "m"),
        Problem("b", 1, "z", "m"),
    ]
    assert str(ConfigError(twice)) == "a: x\nb:1: z: m\nb:2: k: m"
    assert (ConfigError.exit_code, BadDataError.exit_code, MissingError.exit_code) == (64, 65, 69)


def test_a_users_text_in_a_message_is_one_short_printable_line() -> None:
    assert shown("a\nb\x1b[31m\u202ec\ud800") == "a?b?[31m?c?"
    assert shown("x" * 200) == "x" * 77 + "..."
    assert shown({"a": 1}) == "{'a': 1}"


def test_a_problem_is_one_printable_line_whatever_it_names() -> None:
    assert str(Problem("a\x1b[31m\n.yaml", 3, "k\te", "m\ud800")) == "a?[31m?.yaml:3: k?e: m?"


def test_both_zeros_are_one_value(tmp_path: Path) -> None:
    text = "place: pre\neps: {}"
    read = {
        canonical(load(Norm, yaml_of(tmp_path, text.format(zero))).model_dump()) for zero in ("0", "0.0", "-0.0", "-0")
    }
    assert read == {'{"eps":0.0,"place":"pre"}'}


def test_suggestions() -> None:
    assert suggest("Pre_LN", ["pre_ln", "post_ln"]) == '; did you mean "pre_ln"? known: post_ln, pre_ln'
    assert suggest("zzz", ["b", "a"]) == "; known: a, b"
    assert suggest(None, ["a"]) == "; known: a"
