"""The registry reads methods without running them, refuses what is unsafe, and knows each by its code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from repro.spec.errors import ConfigError
from repro.spec.methods import MAX_METHOD_BYTES, RESERVED, method_template, read_method, registry, resolve, source_hash

T12 = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "T12" / "variants.yaml"
OWN = ("pre_ln", "post_ln", "peri_ln", "pre_qk", "simplenorm", "beta_skip", "no_norm")
GOOD = method_template("good")


def folder(tmp_path: Path, **files: str) -> Path:
    place = tmp_path / "some" / "methods"
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / f"{name}.py").write_text(text, "utf-8")
    return place


def problems(place: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        registry(place)
    return str(caught.value)


def info(**changes: object) -> str:
    """A valid file with other values in INFO."""
    fields: dict[str, object] = {"title": "T", "ref": "r", "tracks": ["lm"], "params": {"dt": 0.5}, "dt_zero": "none"}
    fields |= changes
    return f"INFO = {fields!r}\n\n\nclass Method:\n    pass\n"


def test_the_packages_own_methods_are_all_there() -> None:
    entries = registry()
    assert set(OWN) <= set(entries)
    for name, entry in entries.items():
        assert entry.name == name == entry.path.stem
        assert len(entry.sha256) == 64
        json.dumps(entry.info.model_dump(), allow_nan=False)


def test_reading_imports_neither_torch_nor_the_methods() -> None:
    code = "import sys; from repro.spec.methods import registry; registry(); print(sorted(sys.modules))"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert "'torch'" not in done.stdout
    assert "repro.methods" not in done.stdout


def test_our_method_files_are_small() -> None:
    for name in OWN:
        lines = [line for line in registry()[name].path.read_text("utf-8").splitlines() if line.strip()]
        assert 8 <= len(lines) <= 20, name


def test_a_template_is_a_method(tmp_path: Path) -> None:
    entry = registry(folder(tmp_path, good=GOOD))["good"]
    assert entry.info.title == "good"
    assert entry.info.params == {"dt": 0.5}
    for bad in ("Bad", "../x", "", "a" * 42, "1a", "a-b", "a\n"):
        with pytest.raises(ValueError, match="must match"):
            method_template(bad)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Method:\n    pass\n", "INFO: is missing"),
        ("INFO = make()\n\nclass Method:\n    pass\n", "INFO: must be a literal dict"),
        ("INFO = {'title': make()}\n\nclass Method:\n    pass\n", "INFO: must be a literal"),
        ("INFO = {**OTHER}\n\nclass Method:\n    pass\n", "INFO: must be a literal"),
        (info() + "INFO = {}\n", "INFO: stands twice"),
        ("INFO = {'title': 'a', 'title': 'b'}\n\nclass Method:\n    pass\n", "INFO.title: stands twice"),
        (info().replace("'dt': 0.5", "'dt': 0.5, 'dt': 0.9"), "bad.py:1: INFO.params.dt: stands twice"),
        (
            info(grid={"dt": [1.0]}).replace("'dt': [1.0]", "'dt': [1.0],\n'dt': [2.0]"),
            "bad.py:2: INFO.grid.dt: stands",
        ),
        (info(tracks=[{"a": 1}]).replace("'a': 1", "'a': 1, 'a': 1"), "INFO.tracks.0.a: stands twice"),
        (info().replace("class Method", "class Other"), "no class Method"),
        (info() + "\nclass Method:\n    pass\n", "Method: stands twice"),
        (info() + "from repro.methods.pre_ln import Method as M\n", "imports repro.methods.pre_ln.Method, whose code"),
        (info() + "from repro.methods import pre_ln\n", "imports repro.methods.pre_ln, whose code"),
        (info() + "from repro import methods\n", "imports repro.methods, whose code"),
        (info() + "def late():\n    import repro.methods.pre_ln\n", "bad.py:7: imports repro.methods.pre_ln, whose"),
        (info() + "from . import pre_ln\n", "imports .pre_ln, whose code"),
        (info() + "from .pre_ln import Method as M\n", "imports .pre_ln.Method, whose code"),
        (info() + "import repro\n", "imports repro, whose code"),
        (info() + "import os.path, math\n", "imports os.path, whose code"),
        (info() + "import torchvision\n", "imports torchvision, whose code"),
        (info() + "from numpy import array, zeros\n", "imports numpy.array, numpy.zeros, whose code"),
        (
            info() + "import sys\n",
            "; allowed: __future__, collections, dataclasses, functools, itertools, math, repro.nn,",
        ),
        (info() + "from repro import nn, train\n", "imports repro.train, whose code"),
        *(
            (info() + f"def late():\n    return {name}('x')\n", f"bad.py:7: uses {name}; what it reads")
            for name in ("open", "exec", "eval", "compile", "__import__")
        ),
        (info() + "e = eval\n", "bad.py:6: uses eval; what it reads"),
        (info() + "@exec\ndef late():\n    pass\n", "uses exec; what it reads"),
        (info() + "x = __builtins__['eval']\n", "uses __builtins__"),
        (info() + "x = (lambda: 0).__globals__\n", "uses __globals__"),
        (info() + "x = globals()\n", "uses globals"),
        (
            info() + "from repro.nn.method_api import load_class, registry\n",
            "imports repro.nn.method_api.load_class, and of",
        ),
        (
            info() + "from repro.nn.method_api import registry as r\n",
            "may use Branch, EPS, Method, RMSNorm, Role, Site,",
        ),
        (info() + "from repro.nn.method_api import importlib\n", "imports repro.nn.method_api.importlib, and"),
        (info() + "from repro.nn import method_api as api\nx = api.importlib.import_module('o')\n", "uses importlib"),
        (info() + "from repro.nn import method_api as api\nx = api.registry()\n", "bad.py:7: uses registry; what it"),
        (info() + "import repro.nn.method_api\nx = repro.nn.method_api.load_method('a')\n", "uses load_method"),
        (info() + "import repro.nn.method_api\nx = repro.nn.method_api.resolve\n", "uses nn.method_api.resolve"),
        (info() + "from repro import nn\nx = nn.method_api.run_file\n", "uses run_file"),
        (info() + "from repro.nn.pretrained import load_gpt2\n", "of repro.nn a method may use anatomy, gpt, initial,"),
        (info() + "from repro import nn\nx = nn.pretrained\n", "uses pretrained"),
        (info() + "import torch\nx = torch.load('w.pt')\n", "uses load; what it reads"),
        (info() + "import torch as t\nx = t.hub.load_state_dict_from_url('u')\n", "uses hub; what it reads"),
        (info() + "from torch import load\n", "imports torch.load, and load is not allowed"),
        (info() + "from torch.jit import load as take\n", "imports torch.jit.load, and load is not allowed"),
        (info() + "from torch import *\nx = load('w.pt')\n", "uses load; what it reads"),
        (info() + "from collections import _sys\n", "imports collections._sys, and _sys is not allowed"),
        (info() + "import dataclasses\nx = dataclasses.sys.modules\n", "uses sys; what it reads"),
        (info() + "import torch\nx = getattr(torch, 'load')('w.pt')\n", "uses load; what it reads"),
        *(
            (
                info().replace("    pass", f"    {name} = {value}"),
                f"bad.py:5: {name}: is no setting of a method, and nothing",
            )
            for name, value in (("norm_type", '"rms"'), ("use_qk_norm", "True"), ("init_std", ".1"))
        ),
        (info().replace("    pass", "    eps: float = 1e-6"), "bad.py:5: eps: is no setting of a method"),
        (info().replace("    pass", "    norm_knd = 'rms'"), 'did you mean "norm_kind"? known: no_decay, norm_eps,'),
        (
            info().replace(
                "class Method:\n    pass", "class Base:\n    use_rms = True\n\n\nclass Method(Base):\n    pass"
            ),
            "bad.py:5: use_rms: is no setting",
        ),
        (info(titel="x"), 'did you mean "title"'),
        (info(title="<b>x</b>"), "INFO.title"),
        (info(title="a\nb"), "INFO.title"),
        (info(title=""), "INFO.title"),
        *((info(title=f"a{sign}b"), "one line of plain text is expected") for sign in "\u2028\x85\u202e"),
        (info(ref=3), "INFO.ref"),
        (info(tracks=[]), "INFO.tracks"),
        (info(tracks=["lm", "lm"]), "twice"),
        (info(tracks=["ml"]), "INFO.tracks"),
        (info(dt_zero="nothing"), "known: identity, none, norm"),
        (info(params={"dt": None}), "finite number"),
        (info(params={"dt": "x" * 300}), "short text"),
        (info(params={"dt": 0.5}).replace("0.5", "1e999"), "finite number"),
        (info(params={"dt": [1.0]}), "finite number"),
        (info(params={"Dt": 1.0}), "INFO.params"),
        (info(params={"step": 1.0}), "part of the interface"),
        (info(grid={"beta": [1.0]}), "grid.beta is no parameter"),
        (info(grid={"dt": []}), "INFO.grid.dt"),
        (info(grid={"dt": [1.0, 1]}), "twice"),
        (info(grid={"dt": ["a"]}), "not of type float"),
        (info(zero_grad_ok=["a b"]), "INFO.zero_grad_ok"),
        ("def broken(:\n", "not Python"),
        ("x = " + "-" * 30000 + "1\n", "not Python: nested too deeply"),
        ("x = " + "not " * 10000 + "1\n", "not Python: nested too deeply"),
        ("x = 1\n" + "(" * 5000, "not Python"),
        ("x = '\0'\n", "not Python"),
        ("# coding: latin-1\n" + info(), "only UTF-8"),
        ("#" * (MAX_METHOD_BYTES + 1), "larger than"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    found = problems(folder(tmp_path, bad=text))
    assert said in found
    assert found.startswith("some/methods/bad.py:")
    assert str(tmp_path) not in found


def test_what_a_method_may_import(tmp_path: Path) -> None:
    lines = [
        "from __future__ import annotations",
        "import math, itertools, functools",
        "import torch, torch.nn.functional as F",
        "from collections.abc import Callable",
        "from dataclasses import dataclass",
        "from typing import Any",
        "from torch import *",
        "from repro import nn",
        "from repro.nn.norms import rms_norm",
        "from repro.nn.method_api import Method as Base, Branch, Site",
        "from repro.nn import method_api as api, stack",
        "core = stack.causal_attention, api.RMSNorm, torch.nn.Linear, nn.gpt.GPT",
        "def own(self, model, load):",
        "    self.load, self.registry = load, getattr(self, 'load', load)",
        "    return model.eval(), self.load, getattr(model, 'eval')()",
        "fast = torch.compile(len)",  # a method of something allowed, not the builtin
    ]
    assert set(registry(folder(tmp_path, good="\n".join(lines) + "\n" + info()))) == {"good"}


def test_values_of_a_methods_own_are_its_business(tmp_path: Path) -> None:
    body = "    calls = 0\n    gain: float = 0.5\n    late: int\n    TABLE = (1, 2)\n    _kept = 3\n    named = 4\n"
    body += "    def step(self, x):\n        self.calls += 1\n"
    body += "        return self.calls * self.gain + getattr(self, 'named')\n"
    other = "\n\nclass Other:\n    unread = 1\n"
    assert set(registry(folder(tmp_path, good=info().replace("    pass\n", body) + other))) == {"good"}


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    place = folder(tmp_path)
    (place / "bad.py").write_bytes(b"x = '\xff\xfe'\n")
    assert "some/methods/bad.py" in problems(place)


@pytest.mark.parametrize("name", ["Upper", "1st", "_hidden", "a-b", "a b", "a" * 42, "ünï", "x.y"])
def test_an_unsafe_file_name_is_refused(tmp_path: Path, name: str) -> None:
    assert "file name must match" in problems(folder(tmp_path, **{name: GOOD}))


def test_a_link_is_refused(tmp_path: Path) -> None:
    place = folder(tmp_path)
    (tmp_path / "outside.py").write_text(GOOD, "utf-8")
    (place / "linked.py").symlink_to(tmp_path / "outside.py")
    (place / "lost.py").symlink_to(tmp_path / "nowhere.py")
    assert problems(place).count("is a link") == 2


def test_all_problems_of_all_files_come_at_once_and_nothing_runs(tmp_path: Path) -> None:
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    found = problems(
        folder(tmp_path, one=trap + info(titel=1, dt_zero="x"), two=trap + "import repro.methods\n", three=GOOD)
    )
    assert found.count("one.py") == 3
    assert found.count("two.py") == 4
    assert "three.py" not in found
    assert not (tmp_path / "ran").exists()


def test_a_comment_keeps_the_hash_and_code_changes_it() -> None:
    base = source_hash(GOOD)
    same = [
        "# a comment\n" + GOOD.replace("norm_kind", "\n    # why\n    norm_kind", 1),
        GOOD.replace('"""norms: where', '"""Another docstring: where'),
        GOOD.replace("    norms = ", "\n\n    norms = "),
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("INFO = {\n", "INFO = {  # the facts\n"),
        GOOD.replace("    ", "  "),
        GOOD.replace('        """x [batch, tokens, d] -> the same shape."""\n', ""),
        GOOD.replace("alpha=self.dt)", "alpha=self.dt\n        )"),
    ]
    for text in same:
        assert text != GOOD
        assert source_hash(text) == base
    different = [
        GOOD.replace("0.5", "0.25"),
        GOOD.replace("alpha=self.dt", "alpha=1.0"),
        GOOD.replace('("in",)', '("out",)'),
        GOOD.replace("site.norm_in(x)", "x"),
        GOOD + "\nEXTRA = 1\n",
        GOOD + "\nTEXT = '# no comment'\n",
        GOOD.replace('title": "good"', 'title": "better"'),
    ]
    assert len({base, *map(source_hash, different)}) == len(different) + 1


def test_the_hash_tells_strings_from_docstrings_and_nesting_from_none() -> None:
    assert source_hash('def f():\n    "d"\n    return 1\n') == source_hash("def f():\n    return 1\n")
    assert source_hash('def f(a="ä"): "d"\n') == source_hash('def f(a="ä"): "e"\n')
    assert source_hash('x = "d"\n') != source_hash('x = "e"\n')
    assert source_hash('f"{a!r:>{w}} b"\n') != source_hash('f"{a!r:>{w}} c"\n')
    assert source_hash('x = f"{a} b"\n') != source_hash('x = f"{a} c"\n')
    assert source_hash("if a:\n    b\nc\n") != source_hash("if a:\n    b\n    c\n")


def test_names_resolve_by_a_closed_list() -> None:
    entries = registry()
    for spelling in ("pre_ln", "PRE_LN", "Pre_Ln"):
        assert resolve(spelling, {}, entries)[0].name == "pre_ln"
    assert resolve("peri_ln", {"dt": 0.1}, entries)[1] == {"dt": 0.1}
    whole = resolve("peri_ln", {"dt": 1}, entries)[1]["dt"]
    assert isinstance(whole, float)
    assert resolve("peri_ln", {"dt": 0.1 + 0.2}, entries)[1] == resolve("peri_ln", {"dt": 0.3}, entries)[1]
    for wrong in ("1.0", True, None, [1.0], float("nan"), float("inf"), 10**400):
        with pytest.raises(ValueError, match="dt"):
            resolve("peri_ln", {"dt": wrong}, entries)
    with pytest.raises(ValueError, match="known: dt"):
        resolve("peri_ln", {"dtt": 0.1}, entries)
    with pytest.raises(ValueError, match="it has none"):
        resolve("no_norm", {"dt": 0.1}, entries)
    for nobody in (None, 3, True, ["pre_ln"], "pre_ln ", "pre_ln\n", "../pre_ln", "x" * 10_000):
        with pytest.raises(ValueError, match="known: beta_skip"):
            resolve(nobody, {}, entries)


def test_types_of_other_parameters_hold_too(tmp_path: Path) -> None:
    text = info(params={"n": 2, "flag": True, "mode": "a"})
    entries = registry(folder(tmp_path, other=text))
    assert resolve("other", {"n": 3, "flag": False, "mode": "b"}, entries)[1] == {"n": 3, "flag": False, "mode": "b"}
    for wrong in ({"n": 3.5}, {"n": True}, {"flag": 1}, {"mode": 1}, {"mode": "a\nb"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            resolve("other", wrong, entries)


@pytest.mark.skipif(not T12.is_file(), reason="../shared/cases/T12 is not there")
def test_t12_twelve_names_are_each_a_method_or_refused_with_the_known_names() -> None:
    entries = registry()
    # Read as text: our own reader refuses the bare `off`, which is case C02.
    names = [line.removeprefix("- ").strip('"') for line in T12.read_text("utf-8").splitlines()]
    assert len(names) == 12
    for name in names:
        if name.casefold() in entries:
            assert resolve(name, {}, entries)[0].name == name.casefold()
            continue
        with pytest.raises(ValueError, match="known: ") as caught:
            resolve(name, {}, entries)
        assert all(known in str(caught.value) for known in entries)


def test_reserved_names_are_the_interface() -> None:
    from repro.nn.method_api import Method

    assert {name for name in dir(Method) if not name.startswith("_")} | {"params"} == RESERVED
    entry = read_method(registry()["pre_ln"].path)
    assert entry == registry()["pre_ln"]


def test_case_c01_a_whole_number_in_any_spelling_is_one_parameter(tmp_path: Path) -> None:
    entries = registry(folder(tmp_path, counted=info(params={"n": 4})))
    made = [resolve("counted", {"n": spelling}, entries)[1]["n"] for spelling in (10, 1e1, 10.0)]
    assert made == [10, 10, 10]
    assert {type(value) for value in made} == {int}
    for wrong in (1.5, "10", True, None):
        with pytest.raises(ValueError, match="is not of type int"):
            resolve("counted", {"n": wrong}, entries)
