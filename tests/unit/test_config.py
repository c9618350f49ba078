"""Every kind of slip in a copy of the real configuration: refused before any work, by file, line and key."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable

import pytest

from repro.plan import build_plan
from repro.spec.errors import ConfigError
from repro.spec.load import load_configuration, read_experiment
from repro.spec.paths import Root, find_root
from repro.spec.stated import title_warnings
from tests.conftest import Checkout, shared_case

Main = Callable[..., tuple[int, str, str]]
EXPERIMENT = "config/experiments/a_quality.yaml"
TIERS, MODELS, DATA = "config/tiers.yaml", "config/models.yaml", "config/data.yaml"
SUITE, HARDWARE = "config/suite.yaml", "config/hardware.yaml"

# What is wrong, in which file, what is replaced by what (the key that is wrong ends the replaced text), and what
# the message must name: the key path and a piece of its sentence.
SLIPS = {
    "key": (EXPERIMENT, r"^seeds", "seedz", "seedz", 'unknown key; did you mean "seeds"?'),
    "key_in_block": (EXPERIMENT, r"^optimizer: \{name: adamw, lr", r"\g<0>_", "optimizer.lr_", 'did you mean "lr"?'),
    "key_in_schedule": (EXPERIMENT, r"warmup", "warmpu", "schedule.warmpu", 'did you mean "warmup"?'),
    "key_far": (EXPERIMENT, r"^seeds", "qqqq", "qqqq", "unknown key; known: assumptions, batch_tokens"),
    "key_called_none": (EXPERIMENT, r"^seeds", "none: 1\nseeds", "none", "unknown key"),
    "doubled": (EXPERIMENT, r"^seeds", "task: lm\nseeds", "task", "stands twice"),
    "method": (EXPERIMENT, r"^methods: \[pre_ln", "methods: [prel_ln", "methods.0", 'did you mean "pre_ln"?'),
    "method_markup": (EXPERIMENT, r"^methods: \[pre_ln", 'methods: ["<b>|`x"', "methods.0", "is no method"),
    "method_path": (EXPERIMENT, r"^methods: \[pre_ln", 'methods: ["../../x"', "methods.0", "is no method"),
    "parameter": (EXPERIMENT, r"dt: 0\.1", "dtt: 0.1", "methods.3", 'did you mean "dt"?'),
    "parameter_type": (EXPERIMENT, r"dt: 0\.1", 'dt: "0.1"', "methods.3", "is not of type float"),
    "parameter_long": (
        EXPERIMENT,
        r"dt: 0\.1",
        "params: {dt: 0.1}, dp: 1",
        "methods.3.dp",
        "unknown key; known: name, params",
    ),
    "method_without_name": (EXPERIMENT, r"name: peri_ln, dt", "dt", "methods.3.name", "is missing"),
    "method_number": (EXPERIMENT, r"^methods: \[pre_ln", "methods: [3", "methods.0", "3: "),
    "method_twice": (EXPERIMENT, r"^methods: \[pre_ln", "methods: [pre_ln, pre_ln", "methods", "are one and the same"),
    "no_method": (EXPERIMENT, r"^methods: \[.*", "methods: []", "methods", "at least 1"),
    "model": (EXPERIMENT, r"gpt2_355m", "gpt2_356m", "model.1", 'did you mean "gpt2_355m"?'),
    "model_twice": (EXPERIMENT, r"gpt2_355m", "gpt2_124m", "model", "names gpt2_124m twice"),
    "data": (EXPERIMENT, r"^data: openwebtext", "data: openwebtxt", "data", 'did you mean "openwebtext"?'),
    "metric": (EXPERIMENT, r"^metrics: \[val_loss", "metrics: [val_los", "metrics.0", 'did you mean "val_loss"?'),
    "metric_twice": (
        EXPERIMENT,
        r"^metrics: \[val_loss",
        "metrics: [val_loss, val_loss",
        "metrics",
        "names val_loss twice",
    ),
    "task": (EXPERIMENT, r"^task: lm", "task: lmm", "task", 'did you mean "lm"?'),
    "task_boolean": (EXPERIMENT, r"^task: lm", "task: off", "task", "quote it"),
    "quoted_number": (EXPERIMENT, r"^tokens: \S+", 'tokens: "1e9"', "tokens", "a number is expected, without quotes"),
    "boolean_number": (EXPERIMENT, r"^seeds: \d+", "seeds: true", "seeds", "a number is expected"),
    "half_a_seed": (EXPERIMENT, r"^seeds: \d+", "seeds: 2.5", "seeds", "a whole number is expected"),
    "octal": (EXPERIMENT, r"^seeds: \d+", "seeds: 010", "seeds", "octal"),
    "endless_number": (EXPERIMENT, r"^tokens: \S+", "tokens: " + "9" * 400, "tokens", "not a number that can be read"),
    "not_finite": (EXPERIMENT, r"^tokens: \S+", "tokens: .inf", "tokens", "finite"),
    "negative": (EXPERIMENT, r"lr: 6\.0e-4", "lr: -1", "optimizer.lr", "greater than 0"),
    "zero_seeds": (EXPERIMENT, r"^seeds: \d+", "seeds: 0", "seeds", "greater than or equal to 1"),
    "huge": (EXPERIMENT, r"^tokens: \S+", "tokens: 1e16", "tokens", "less than or equal to"),
    "too_many_looks": (EXPERIMENT, r"^seeds", "validations: 101\nseeds", "validations", "less than or equal to 100"),
    "rate_twice": (EXPERIMENT, r"lr: 6\.0e-4", "lr: [6.0e-4, 0.0006]", "optimizer.lr", "names 0.0006 twice"),
    "no_rate": (EXPERIMENT, r"lr: 6\.0e-4", "lr: []", "optimizer.lr", "at least 1"),
    "word_for_boolean": (MODELS, r"^(gpt_d64_l4: \{)", r'\1bias: "yes", ', "gpt_d64_l4.bias", "valid boolean"),
    "number_for_boolean": (MODELS, r"^(gpt_d64_l4: \{)", r"\1tied: 0, ", "gpt_d64_l4.tied", "valid boolean"),
    "list_for_block": (EXPERIMENT, r"^schedule: \{.*", "schedule: [cosine]", "schedule", "dictionary"),
    "name": (EXPERIMENT, r"^name: a_quality", "name: a_qualitx", "name", "must equal the file's name, a_quality"),
    "name_markup": (EXPERIMENT, r"^name: a_quality", 'name: "<img src=x>"', "name", "should match pattern"),
    "name_path": (EXPERIMENT, r"^name: a_quality", 'name: "../../x"', "name", "should match pattern"),
    "name_long": (EXPERIMENT, r"^name: a_quality", f"name: {'a' * 50}", "name", "should match pattern"),
    "title_long": (EXPERIMENT, r"^title: .*", f"title: {'a' * 2001}", "title", "at most 2000"),
    "tier": (TIERS, r"^smoke", "smok", "smok", 'did you mean "smoke"?'),
    "tier_task": (
        TIERS,
        r"^  lm",
        "  ln",
        "smoke.ln",
        "unknown key; known: check, classify, flow, forecast, lm, title",
    ),
    "tier_key": (TIERS, r"^    precision", "    precison", "smoke.lm.precison", 'did you mean "precision"?'),
    "tier_method": (TIERS, r"^    seeds", "    methods: [pre_ln]\n    seeds", "smoke.lm.methods", "unknown key"),
    "tier_metrics": (TIERS, r"^    seeds", "    metrics: [val_loss]\n    seeds", "smoke.lm.metrics", "unknown key"),
    "tier_schedule": (TIERS, r"^    seeds", "    schedule: {}\n    seeds", "smoke.lm.schedule", "unknown key"),
    "tier_base": (TIERS, r"\{gpt2_124m", "{gpt2_125m", "smoke.lm.model.gpt2_125m", 'did you mean "gpt2_124m"?'),
    "tier_model": (
        TIERS,
        r"gpt2_355m: gpt_d32_l3",
        "gpt2_355m: gpt_d32_l9",
        "smoke.lm.model.gpt2_355m",
        "is not known",
    ),
    "tier_data": (
        TIERS,
        r"data: \{openwebtext: embedded_lm",
        "data: {openwebtext: embeded_lm",
        "smoke.lm.data.openwebtext",
        'did you mean "embedded_lm"?',
    ),
    "tier_data_for_all": (TIERS, r"data: \{.*\}", "data: embeded_lm", "smoke.lm.data", 'did you mean "embedded_lm"?'),
    "tier_base_data": (
        TIERS,
        r"\{openwebtext",
        "{openwebtxt",
        "smoke.lm.data.openwebtxt",
        'did you mean "openwebtext"?',
    ),
    "tier_device": (TIERS, r"device: cpu", "device: tpu", "smoke.lm.device", "is not known"),
    "tier_micro_batch": (
        TIERS,
        r"^    batch_tokens",
        "    micro_batch: 0\n    batch_tokens",
        "smoke.lm.micro_batch",
        "1",
    ),
    "model_key": (
        MODELS,
        r"^gpt_d64_l4: \{n_layer",
        "gpt_d64_l4: {n_layr",
        "gpt_d64_l4.n_layr",
        'did you mean "n_layer"?',
    ),
    "model_heads": (MODELS, r"^(gpt_d64_l4: .*n_head): 4", r"\1: 5", "gpt_d64_l4", "64 is not a multiple of n_head 5"),
    "source_key": (DATA, r"^  tokenizer", "  tokeniser", "embedded_lm.tokeniser", 'did you mean "tokenizer"?'),
    "source_kind": (DATA, r"kind: wheel_wikipedia", "kind: script", "embedded_lm.kind", "is not known"),
    "source_needs": (DATA, r"^  dist: gensim", "  # dist", "embedded_lm", "kind wheel_wikipedia needs dist"),
    "source_hash": (DATA, r"sha256: \w{4}", "sha256: wxyz", "embedded_lm.sha256", "should match pattern"),
    "source_leads_out": (DATA, r"file: gensim", "file: gensim/../..", "embedded_lm", "leads out of its package"),
    "source_absolute": (DATA, r"file: gensim", "file: /etc", "embedded_lm.file", "should match pattern"),
    "source_code": (
        DATA,
        r"^  tokenizer",
        "  trust_remote_code: true\n  tokenizer",
        "embedded_lm.trust_remote_code",
        "unknown",
    ),
    "suite_key": (SUITE, r"^planning_device", "planing_device", "planing_device", 'did you mean "planning_device"?'),
    "suite_tier": (SUITE, r"^tier: smoke", "tier: smok", "tier", 'did you mean "smoke"?'),
    "suite_experiment": (
        SUITE,
        r"^experiments: null",
        "experiments: [a_qualty]",
        "experiments.0",
        'did you mean "a_quality"?',
    ),
    "suite_none": (SUITE, r"^experiments: null", "experiments: []", "experiments", "at least 1"),
    "suite_device": (SUITE, r"^planning_device: .*", "planning_device: H100", "planning_device", "is not known"),
    "suite_shell": (SUITE, r"account: null", 'account: "a; rm -rf x"', "slurm.account", "should match pattern"),
    "hardware_key": (HARDWARE, r"memory_gb", "memory_g", "NVIDIA A100-SXM4-40GB.memory_g", 'did you mean "memory_gb"?'),
    "hardware_precision": (HARDWARE, r"fp32", "fp33", "NVIDIA A100-SXM4-40GB.peak.fp33", 'did you mean "fp32"?'),
}


def slip(checkout: Checkout, name: str) -> tuple[str, int, str, str]:
    file, pattern, new, key, says = SLIPS[name]
    return file, checkout.replace(file, pattern, new), key, says


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_refused_by_file_line_and_key(name: str, checkout: Checkout, repro_main: Main) -> None:
    file, line, key, says = slip(checkout, name)
    for words in (["plan", "--tier", "smoke"], ["check-config", file]):
        if words[0] == "check-config" and name == "method_twice":
            continue  # equal cells are seen in a plan
        started = time.perf_counter()
        code, out, err = repro_main(checkout, *words)
        assert time.perf_counter() - started < 2
        assert (code, out) == (64, ""), err
        lines = [text for text in err.splitlines() if f": {key}: " in text]
        assert lines, err
        assert says in lines[0], err
        place = re.match(r"(config/\S+?):(\d+): ", lines[0])
        assert place, err
        where = line if "\n" not in SLIPS[name][2] else int(place[2])
        near = range(where - 8, where + 1) if says == "leads out of its package" or name == "source_needs" else [where]
        assert (place[1], int(place[2]) in near) == (file, True), err


@pytest.mark.parametrize(
    "words", [("plan",), ("check-config", "config"), ("show", "x"), ("run", "x"), ("tables",), ("data", "list")]
)
def test_a_slip_costs_a_moment_and_no_traceback(checkout: Checkout, words: tuple[str, ...]) -> None:
    """In a process of its own, as a user sees it."""
    checkout.replace(EXPERIMENT, r"^seeds", "seedz")
    started = time.perf_counter()
    done = checkout.repro(*words)
    assert time.perf_counter() - started < 6  # 0.5 s of work; two slow cores with other work on them
    assert (done.returncode, done.stdout) == (64, "")
    assert 'seedz: unknown key; did you mean "seeds"?' in done.stderr
    assert "Traceback" not in done.stderr
    assert not (checkout.path / "scratch").exists()
    assert not (checkout.path / "results").exists()


def test_the_problems_of_all_files_are_told_at_once(checkout: Checkout, repro_main: Main) -> None:
    names = ("key", "quoted_number", "tier_key", "model_heads", "suite_shell", "source_hash", "hardware_key")
    for name in names:
        slip(checkout, name)
    checkout.write("config/experiments/z_other.yaml", "name: z_other\nname: y\n")
    code, _, err = repro_main(checkout, "plan")
    assert code == 64
    for file in (EXPERIMENT, TIERS, MODELS, DATA, SUITE, HARDWARE, "config/experiments/z_other.yaml"):
        assert f"{file}:" in err
    assert all(f": {SLIPS[name][3]}: " in err for name in names)


def test_the_real_configuration_is_sound_at_every_tier(repo_root: object) -> None:
    root = find_root()
    configuration = load_configuration(root)
    for tier in configuration.tiers:
        plan = build_plan(root, tier, configuration=configuration)
        assert plan.runs
        assert plan.cells.keys() == configuration.experiments.keys()
    for experiment in configuration.experiments.values():
        assert title_warnings(experiment, configuration.documents[experiment.name]) == []


def test_check_config_takes_the_whole_folder(checkout: Checkout, repro_main: Main) -> None:
    code, out, err = repro_main(checkout, "check-config", "config", "repro/methods")
    assert (code, out) == (0, ""), err
    assert "file(s) checked" in err


def test_two_cells_that_a_tier_makes_equal_are_refused(checkout: Checkout, repro_main: Main) -> None:
    line = checkout.replace(EXPERIMENT, r"^model: \[", "model: [")
    checkout.replace(TIERS, r"gpt2_355m: gpt_d32_l3", "gpt2_355m: gpt_d32_l2")
    code, _, err = repro_main(checkout, "plan", "--tier", "smoke")
    assert code == 64
    fault = "the cells pre_ln/gpt2_124m and pre_ln/gpt2_355m are one and the same"
    assert f"{EXPERIMENT}:{line}: model: at tier smoke: {fault}" in err.splitlines()
    assert repro_main(checkout, "plan", "--tier", "desk")[0] == 0


@pytest.mark.parametrize(
    ("file", "pattern", "new", "says"),
    [
        (
            MODELS,
            r"^(gpt_d32_l2: .*vocab): 256",
            r"\1: 255",
            "the vocabulary of 255 is smaller than the tokenizer's, 256",
        ),
        (MODELS, r"^(gpt_d32_l2: .*context): 64", r"\1: 60", "1024 tokens a step are no multiple of the context, 60"),
        (
            TIERS,
            r"^    batch_tokens: 1024",
            "    batch_tokens: 1000",
            "1000 tokens a step are no multiple of the context, 64",
        ),
        (
            TIERS,
            r"^    batch_tokens",
            "    micro_batch: 5\n    batch_tokens",
            "16 sequences a step are no multiple of the micro-batch, 5",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(
    checkout: Checkout, repro_main: Main, file: str, pattern: str, new: str, says: str
) -> None:
    checkout.replace(file, pattern, new)
    code, out, err = repro_main(checkout, "plan", "--tier", "smoke")
    assert (code, out) == (64, "")
    assert re.search(
        rf"^config/experiments/a_quality\.yaml:\d+: (model|batch_tokens): at tier smoke: {re.escape(says)}", err, re.M
    )
    assert len(err.splitlines()) >= 2, "all experiments that it concerns are named"


@pytest.mark.parametrize(
    ("pattern", "new", "says"),
    [
        (
            r"^methods: .*",
            "methods: [{name: peri_ln, dt: 0.1}, {name: peri_ln, dt: 0.10}]",
            "methods: .* one and the same",
        ),
        (r"^tokens: .*", "tokens: 1000", "tokens: .*1000 tokens are less than one step of 245760"),
        (r"^batch_tokens: .*", "batch_tokens: 245761", "batch_tokens: .*245761 tokens a step are no multiple of the"),
    ],
)
def test_what_does_not_fit_is_told_at_its_own_line(
    checkout: Checkout, repro_main: Main, pattern: str, new: str, says: str
) -> None:
    checkout.replace("config/experiments/a_stability.yaml", pattern, new)
    line = (checkout.path / "config/experiments/a_stability.yaml").read_text().splitlines().index(new) + 1
    code, _, err = repro_main(checkout, "plan", "--tier", "paper")
    assert code == 64
    assert re.search(rf"^config/experiments/a_stability\.yaml:{line}: {says}", err, re.MULTILINE), err


def test_case_t09_tokens_of_a_step_are_kept_or_refused(checkout: Checkout, repro_main: Main) -> None:
    """491,520 tokens a step: 160 micro-batches of 3 sequences; 7 sequences do not divide it."""
    for name in ("a_quality", "a_stability", "c_lr_tolerance", "lm_leaderboard"):
        checkout.replace(f"config/experiments/{name}.yaml", r"^batch_tokens: \d+", "batch_tokens: 491520")
    checkout.replace(TIERS, r"^proxy:\n(.*\n)  lm:", r"\g<0>\n    micro_batch: 3")
    assert repro_main(checkout, "plan", "--tier", "proxy")[0] == 0
    checkout.replace(TIERS, r"micro_batch: 3", "micro_batch: 7")
    code, _, err = repro_main(checkout, "plan", "--tier", "proxy")
    assert code == 64
    assert "480 sequences a step are no multiple of the micro-batch, 7" in err


@pytest.mark.parametrize(
    ("title", "says"),
    [
        ("variant_1B_lr0.0002", ["says lr 0.0002, the experiment has [0.0006]"]),
        ("variant_1B_lr0.0006", []),
        ("LR 6e-4 and wd 0.1", []),
        ("wd=0.2, lr 1e-3", ["says wd 0.2", "says lr 1e-3"]),
        ("dt 0.5", ["says dt 0.5, the experiment has [0.1]"]),
        ("lr 1.2.3", ["says lr 1.2"]),
        ("lr 1e999", ["says lr 1e999"]),
        ("better 5 blurt3", []),
        ("lr: 0.002", ["says lr 0.002, the experiment has [0.0006]"]),
        ("lr=.002", ["says lr .002"]),
        ("lr .0006, lr=6e-4, lr_0.0006, learning rate: 0.0006", []),
        ("learning rate 0.002", ["says learning rate 0.002, the experiment has [0.0006]"]),
        ("Learning-rate of 2e-3", ["says Learning-rate 2e-3"]),
        ("weight decay 0.5", ["says weight decay 0.5, the experiment has [0.1]"]),
        ("weight_decay=0.5", ["says weight_decay 0.5"]),
        ("weight decay: .1, weight_decay 0.1", []),
        ("lr 10x larger, lr 5 % off, lr 0.002x, weight decay is 0.1", []),
        ("learning rates 0.5 and colour 7, dtype 32", []),
    ],
)
def test_case_c06_a_title_that_states_another_value_is_warned_about(
    checkout: Checkout, repro_main: Main, title: str, says: list[str]
) -> None:
    line = checkout.replace(EXPERIMENT, r"^title: .*", f'title: "{title}"')
    root = Root(checkout.path)
    warnings = [str(w) for w in title_warnings(*read_experiment(root, checkout.file(EXPERIMENT)))]
    assert len(warnings) == len(says)
    for warning, words in zip(warnings, says, strict=True):
        assert warning.startswith(f"{EXPERIMENT}:{line}: title: {words}")
    code, _, err = repro_main(checkout, "check-config", EXPERIMENT)
    assert code == 0
    assert err.count("warning: ") == len(says)
    code, _, err = repro_main(checkout, "plan", "--tier", "smoke", "--json")
    assert (code, err.count("warning: ")) == (0, len(says))


def test_case_c06_assumptions_and_classifications_are_read_too(checkout: Checkout, repro_main: Main) -> None:
    line = checkout.replace(EXPERIMENT, r"^assumptions:\n", 'assumptions:\n  - "lr 0.5 everywhere"\n')
    sst2 = "config/experiments/d_sst2_depth.yaml"
    checkout.replace(sst2, r"^title: .*", 'title: "lr 1e-3 after 3e-3: lr 3.0e-3, lr 0.7, weight decay 0.5"')
    code, _, err = repro_main(checkout, "plan", "--tier", "smoke")
    assert code == 0
    assert err.splitlines()[:3] == [
        f"warning: {EXPERIMENT}:{line}: assumptions: says lr 0.5, the experiment has [0.0006]",
        f"warning: {sst2}:2: title: says lr 0.7, the experiment has [0.001, 0.003]",
        f"warning: {sst2}:2: title: says weight decay 0.5, the experiment has [0.01]",
    ]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("local.yml", 'is not read; did you mean "local.yaml"?'),
        ("local.YAML", "is not read; did you mean"),
        ("Suite.yaml", 'is not read; did you mean "suite.yaml"?'),
        ("more/x.yaml", "is not read; "),
        ("experiments/x.yml", "is not read: the name must end in .yaml"),
        ("experiments/x.YAML", "is not read: the name must end in .yaml"),
        ("experiments/x.json", "is not read: the name must end in .yaml"),
        ("experiments/sub/x.yaml", "is not read: no folder is read in config/experiments"),
        ("claims/paper_a.yml", "is not read: the name must end in .yaml"),
        ("claims/sub.yaml/x", "is not read: no folder is read in config/claims"),
    ],
)
def test_case_c03_a_file_that_would_not_be_read_is_no_silence(
    checkout: Checkout, repro_main: Main, entry: str, says: str
) -> None:
    checkout.write(f"config/{entry}", "tier: desk\n")
    told = entry.removesuffix("/x.yaml").removesuffix("/x")
    for words in (("plan",), ("check-config", "config")):
        code, out, err = repro_main(checkout, *words)
        assert (code, out) == (64, "")
        assert f"config/{told}: {says}" in err


@pytest.mark.parametrize(
    ("file", "pattern", "new", "key", "says"),
    [
        ("a", r"weight_decay: 0\.0, a:", "weight_decay: 0.3, a:", "cells.weight_decay", "known: 0.1, 0.0"),
        (
            "a",
            r"a_quality, model: gpt2_124m",
            "a_quality, model: gpt_d32_l2",
            "cells.model",
            "known: gpt2_124m, gpt2_355m",
        ),
        (
            "a",
            r"params: \{dt: 0\.1\}",
            "params: {dt: 0.3}",
            "cells.a",
            "peri_ln dt=0.3 is no method of a_quality; known: pre",
        ),
        ("a", r"b: peri_ln", "b: simplenorm", "cells.b", "simplenorm is no method of a_stability; known: pre_ln"),
        (
            "d",
            r"layers: 2, residual: true",
            "layers: 3, residual: true",
            "cells.a",
            "layers 3 is not in d_sst2_depth; known: 2",
        ),
        ("d", r"control: none", "layers: 2", "cells.a", "d_jena_beta has no layers to choose"),
    ],
)
def test_a_claim_speaks_of_cells_that_its_experiment_has(
    checkout: Checkout, repro_main: Main, file: str, pattern: str, new: str, key: str, says: str
) -> None:
    name = f"config/claims/paper_{file}.yaml"
    line = checkout.replace(name, pattern, new)
    code, _, err = repro_main(checkout, "check-config", name)
    assert code == 64
    assert any(text.startswith(f"{name}:{line}: {key}: ") and says in text for text in err.splitlines()), err


def test_what_editors_leave_beside_a_file_is_no_fault(checkout: Checkout, repro_main: Main) -> None:
    for folder in ("config", "config/experiments", "config/claims"):
        for name in ("x.yaml~", ".x.yaml.swp", "#x.yaml#", "README.md", ".old/x.yaml", "x.yaml.bak"):
            checkout.write(f"{folder}/{name}", "not read")
    assert repro_main(checkout, "plan")[0] == 0


@pytest.mark.parametrize(
    "file", [EXPERIMENT, SUITE, TIERS, "config/local.yaml", "config/claims/paper_a.yaml", "config/claims/unused.yaml"]
)
def test_a_link_out_of_the_configuration_is_refused_and_nothing_behind_it_shown(
    checkout: Checkout, repro_main: Main, file: str
) -> None:
    secret = checkout.write("secret.yaml", "not for print: [")
    checkout.file(file).unlink(missing_ok=True)
    checkout.file(file).symlink_to(secret)
    for words in (("plan",), ("tables",), ("check-config", "config")):
        code, _, err = repro_main(checkout, *words)
        assert code == 64, err
        assert f"{file}: is a symbolic link that leads out of its folder" in err.splitlines()
        assert "print" not in err


def test_a_folder_of_the_configuration_is_no_link_either(checkout: Checkout, repro_main: Main) -> None:
    checkout.file("config/claims").rename(checkout.file("elsewhere"))
    checkout.file("config/claims").symlink_to(checkout.file("elsewhere"))
    code, _, err = repro_main(checkout, "plan")
    assert (code, err) == (64, "config/claims: is a symbolic link that leads out of its folder\n")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere", "no such file"),
        ("local.yaml", "is a symbolic link that leads out of its folder"),
        ("experiments", "is no regular file"),
        ("/dev/null", "is a symbolic link that leads out of its folder"),
    ],
)
def test_local_settings_that_cannot_be_read_are_not_passed_over(
    checkout: Checkout, repro_main: Main, target: str, says: str
) -> None:
    checkout.file("config/local.yaml").symlink_to(target)
    code, _, err = repro_main(checkout, "plan")
    assert (code, err) == (64, f"config/local.yaml: {says}\n")


def test_a_link_within_the_folder_is_followed(checkout: Checkout, repro_main: Main) -> None:
    checkout.write("config/.cluster.yaml", "tier: desk\n")
    checkout.file("config/local.yaml").symlink_to(".cluster.yaml")
    assert load_configuration(Root(checkout.path)).suite.tier == "desk"


def test_local_settings_are_laid_over_the_suites(checkout: Checkout) -> None:
    checkout.write("config/local.yaml", "slurm: {partition: gpu_long}\n")
    suite = load_configuration(Root(checkout.path)).suite
    assert (suite.slurm.partition, suite.slurm.account, suite.tier) == ("gpu_long", None, "smoke")
    checkout.write("config/local.yaml", "# nothing\n")
    assert load_configuration(Root(checkout.path)).suite.slurm.partition is None
    checkout.write("config/local.yaml", "\nslurm: {acount: x}\n")
    with pytest.raises(ConfigError, match=r'config/local.yaml:2: slurm.acount: unknown key; did you mean "account"'):
        load_configuration(Root(checkout.path))


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("gone.yaml", None, 64),
        ("odd.toml", "a = 1", 64),
        ("deep.json", "[" * 10_000, 65),
        ("nan.json", "[NaN]", 65),
        ("list.json", "[]", 65),
        ("tag.yaml", "!!python/object/apply:os.system [touch ran]", 64),
        ("code.py", "import os\nos.system('touch ran')\n", 64),
        ("weights.pt", "x", 64),
    ],
)
def test_check_config_refuses_any_file_that_is_not_what_it_says(
    checkout: Checkout, repro_main: Main, name: str, text: str | None, code: int
) -> None:
    if text is not None:
        checkout.write(name, text)
    found, out, err = repro_main(checkout, "check-config", name)
    assert (found, out) == (code, "")
    assert err.startswith(name)
    assert not (checkout.path / "ran").exists()


def test_check_config_follows_no_link_out_of_a_folder(checkout: Checkout, repro_main: Main) -> None:
    (checkout.path / "in" / "deep").mkdir(parents=True)
    for name, target in {
        "out.yaml": "../../config/models.yaml",
        "loop.yaml": "loop.yaml",
        "dead.yaml": "nowhere",
    }.items():
        (checkout.path / "in" / name).symlink_to(target)
        code, _, err = repro_main(checkout, "check-config", f"in/{name}")
        assert code == 64, err


def test_case_s10_a_hostile_submission_is_refused_as_a_whole(checkout: Checkout, repro_main: Main) -> None:
    shutil.copy(shared_case("S10/submission.json"), checkout.path / "submission.json")
    for words in (["check-config", "submission.json"], ["records", "validate", "submission.json"]):
        code, out, err = repro_main(checkout, *words)
        assert (code, out) == (65, "")
        assert all(f"submission.json: {key}: unknown key" in err for key in ("author", "link", "files", "note"))
        assert "\u202e" not in err


def test_the_root_is_found_from_below_and_by_name(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout.path / "a" / "b").mkdir(parents=True)
    monkeypatch.delenv("REPRO_ROOT", raising=False)
    monkeypatch.chdir(checkout.path / "a" / "b")
    assert find_root().path == checkout.path.resolve()
    monkeypatch.setenv("REPRO_ROOT", str(checkout.path / "a"))
    with pytest.raises(ConfigError, match="start in a checkout, or set REPRO_ROOT"):
        find_root()
    monkeypatch.chdir("/")
    monkeypatch.setenv("REPRO_ROOT", str(checkout.path))
    assert find_root().path == checkout.path.resolve()
