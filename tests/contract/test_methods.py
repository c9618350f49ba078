"""Every registered method keeps the contract; every usual mistake fails the check that is there for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from repro.nn.contract import CHECKS, check_method
from repro.spec.methods import MethodEntry, method_template, read_method, registry

GOOD = method_template("good")
RESULT = "return add(x, branch(site.norm_in(x)), alpha=self.dt)"


def written(tmp_path: Path, text: str) -> MethodEntry:
    place = tmp_path / "some" / "methods"
    place.mkdir(parents=True)
    (place / "good.py").write_text(text, "utf-8")
    return read_method(place / "good.py")


def failed(entry: MethodEntry) -> dict[str, str]:
    return {result.name: result.detail for result in check_method(entry) if not result.ok}


def changed(step: str, *, head: str = "", info: str = "", more: str = "") -> str:
    """The template with another last line, class head, INFO and further methods."""
    text = GOOD.replace(RESULT, step)
    text = text.replace('    norms = ("in",)\n    norm_kind = "rms"\n', head or '    norms = ("in",)\n')
    text = text.replace('    "params": {"dt": 0.5},\n    "dt_zero": "identity",\n', info) if info else text
    return text.replace("from torch import Tensor, add", "import torch\nfrom torch import Tensor, add, nn") + more


@pytest.mark.parametrize("name", sorted(registry()))
def test_a_registered_method_keeps_the_contract(name: str) -> None:
    results = check_method(registry()[name])
    assert [result.name for result in results] == ["loads", *CHECKS]
    assert {result.name: result.detail for result in results if not result.ok} == {}
    assert all(result.detail and "\n" not in result.detail for result in results)


def test_a_new_method_from_the_template_keeps_it_and_leaves_torchs_generator_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert failed(written(tmp_path, GOOD)) == {}
    assert torch.equal(state, torch.get_rng_state())


REZERO = changed(
    "return x + site.alpha * branch(x)",
    head="    norms = ()\n",
    info='    "dt_zero": "identity",\n    "zero_grad_ok": ["blocks.*"],\n',
    more="\n    def extra(self, site):\n        return {'alpha': torch.zeros(1)}\n",
)
RESI_DUAL = changed(
    "b = branch(x)\n        return site.norm_out(x + b), carry + b",
    head='    norms = ("out",)\n    uses_carry = True\n',
    info='    "dt_zero": "none",\n',
    more="\n    def begin(self, x):\n        return x\n"
    "\n    def end(self, x, carry, norm):\n        return x + norm(carry)\n",
).replace("site: api.Site)", "site: api.Site, carry: Tensor)")
SUB_LN = changed(
    RESULT,
    more="\n    def linear(self, n_in, n_out, role, layer, depth, bias):\n"
    "        linear = super().linear(n_in, n_out, role, layer, depth, bias)\n"
    "        return nn.Sequential(self.norm(n_in, bias), linear) if role in ('o', 'down') else linear\n",
)
PER_HEAD = changed(
    "unit = lambda z: nn.functional.normalize(z, dim=-1)\n"
    "        core = nn.functional.scaled_dot_product_attention\n"
    "        inner = lambda q, k, v: core(unit(q), unit(k), v, is_causal=True)\n"
    "        more = {'attend': inner} if site.kind == 'attn' else {}\n"
    "        return add(x, branch(site.norm_in(x), **more), alpha=self.dt)"
)


TWO_NORMS = '    norms = ("in", "out")\n'
SUM = "return x + site.norm_out(branch(site.norm_in(x)))"
COUNTED = "return add(x, branch(site.norm_in(x)), alpha=self.dt) * (1 - 0.5 ** (1 + self.steps))"
COUNTER = (
    "\n    def __init__(self, **params):\n        super().__init__(**params)\n        self.steps = 0\n"
    "\n    def after_step(self, model):\n        self.steps += 1\n"
)
WARM_UP = changed(  # as ProRes: the step stands in a buffer, which is saved with the weights
    "t = site.clock.t\n        return site.norm_out(x + torch.clamp((t + 1) / self.steps, max=1.0) * branch(x))",
    head='    norms = ("out",)\n',
    info='    "params": {"steps": 1000},\n    "grid": {"steps": [1000, 2000]},\n    "dt_zero": "norm",\n',
    more="\n    def extra(self, site):\n        return {'clock': Clock()}\n"
    "\n    def after_step(self, model):\n        for module in model.modules():\n"
    "            if isinstance(module, Clock):\n                module.t += 1\n"
    "\n\nclass Clock(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.register_buffer('t', torch.zeros(()))\n",
)
PROJECTED = changed(  # as nGPT; `every` and `mode` act in a hook alone, `floor` with one mode only
    SUM,
    head=TWO_NORMS,
    info='    "params": {"every": 10, "mode": "unit", "floor": 0.1},\n'
    '    "grid": {"every": [10, 50], "mode": ["none", "unit"]},\n    "dt_zero": "identity",\n',
    more="\n    def extra(self, site):\n        return {'clock': Clock()}\n"
    "\n    def after_step(self, model):\n        for module in model.modules():\n"
    "            if isinstance(module, Clock):\n                module.t += 1\n"
    "        if self.mode == 'unit' and int(module_of(model).t) % self.every == 0:\n"
    "            with torch.no_grad():\n                w = model.wte.weight\n"
    "                w.div_(w.norm(dim=1, keepdim=True).clamp(min=self.floor))\n"
    "\n\ndef module_of(model):\n    return next(m for m in model.modules() if isinstance(m, Clock))\n"
    "\n\nclass Clock(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.register_buffer('t', torch.zeros((), dtype=torch.int64))\n"
    "\n    def forward(self):\n        return self.t\n",
)
PROFILED = changed(  # as Admin: the first batch sets a parameter
    "return x + site.share * site.norm_out(branch(site.norm_in(x)))",
    head=TWO_NORMS,
    info='    "dt_zero": "identity",\n',
    more="\n    def extra(self, site):\n        return {'share': torch.ones(1)}\n"
    "\n    def before_training(self, model, tokens):\n        with torch.no_grad():\n"
    "            size = model(tokens).std()\n            for name, p in model.named_parameters():\n"
    "                if name.endswith('share'):\n                    p.copy_(1 / (1 + size))\n",
)
LNS = changed(  # the case T12: the asked-for name is lower-cased before it is compared
    "kind = self.scaling.lower()\n        scale = (site.layer + 1.0) ** -self.power if kind == 'LNS' else 1.0\n"
    "        return x + branch(scale * site.norm_in(x))",
    info='    "params": {"scaling": "LNS", "power": 0.25},\n    "grid": {"power": [0.25, 0.5]},\n'
    '    "dt_zero": "identity",\n',
)
WIDER = {
    "gate": REZERO,
    "carry": RESI_DUAL,
    "inner_norm": SUB_LN,
    "heads": PER_HEAD,
    "buffer": WARM_UP,
    "projection": PROJECTED,
    "profile": PROFILED,
    "lns": LNS.replace("== 'LNS'", "== 'lns'"),
    "whole numbers": changed(
        "return self.beta * x + self.dt * branch(site.norm_in(x))",
        info='    "params": {"dt": 2, "beta": 3},\n    "dt_zero": "none",\n',
    ),
    "values of its own": changed(
        "return x + site.norm_out(branch(site.norm_in(x))) * self.gain * self.size(SIZE, self._half)",
        head=TWO_NORMS + "    HALF = 0.5\n    _half = 0.5\n    gain = 1.0\n",
        info='    "params": {"gain": 0.5},\n    "dt_zero": "identity",\n',
        more="\n    @classmethod\n    def size(cls, a, b):\n        return a * b * cls.HALF\n\n\nSIZE = 4.0\n",
    ),
    "names that checks use": changed(
        "return x + self.seed * site.norm_out(branch(site.norm_in(x))) + self.bias * site.norm_in(x)",
        head=TWO_NORMS,
        info='    "params": {"seed": 2, "bias": 0.5},\n    "dt_zero": "none",\n',
    ),
}


@pytest.mark.parametrize("name", WIDER)
def test_methods_of_the_wider_field_keep_it(tmp_path: Path, name: str) -> None:
    assert failed(written(tmp_path, WIDER[name])) == {}


BROKEN = {
    "dt on the skip": (
        changed("return add(branch(site.norm_in(x)), x, alpha=self.dt)"),
        "coefficient",
        "acts on the skip",
    ),
    "whole dt on the skip": (
        changed(
            "return add(branch(site.norm_in(x)), x, alpha=self.dt)",
            info='    "params": {"dt": 1},\n    "dt_zero": "none",\n',
        ),
        "coefficient",
        "acts on the skip",
    ),
    "whole beta on the branch": (
        changed(
            "return x + self.beta * branch(site.norm_in(x))",
            info='    "params": {"beta": 1},\n    "dt_zero": "none",\n',
        ),
        "coefficient",
        "beta is not the factor of the skip",
    ),
    "raises what is no Exception": (
        changed("raise Odd('no\\nway')", more="\n\nclass Odd(BaseException):\n    pass\n"),
        "shapes",
        "Odd: no",
    ),
    "raises what Ctrl-C raises": (changed("raise KeyboardInterrupt"), "shapes", "KeyboardInterrupt: "),
    "raises what cannot be told": (
        changed(
            "raise Odd",
            more="\n\nclass Odd(Exception):\n    def __str__(self):\n        raise ValueError\n",
        ),
        "shapes",
        "Odd: (its message cannot be read)",
    ),
    "dt inside the output norm": (
        changed("return x + site.norm_out(self.dt * branch(site.norm_in(x)))", head='    norms = ("in", "out")\n'),
        "coefficient",
        "dt ",
    ),
    "dt unused": (changed("return x + branch(site.norm_in(x))"), "coefficient", "no effect"),
    "dt on the skip under a norm": (
        changed(
            "return site.norm_out(self.dt * x + branch(x))",
            head='    norms = ("out",)\n',
            info='    "params": {"dt": 0.5},\n    "dt_zero": "norm",\n',
        ),
        "coefficient",
        "dt ",
    ),
    "beta on the branch": (
        changed(
            "return x + self.beta * branch(site.norm_in(x))",
            info='    "params": {"beta": 0.5},\n    "dt_zero": "none",\n',
        ),
        "coefficient",
        "beta is not the factor of the skip",
    ),
    "another law at dt = 0": (
        changed("return site.norm_out(add(x, branch(x), alpha=self.dt))", head='    norms = ("out",)\n'),
        "dt_zero",
        "declared identity",
    ),
    "looks ahead": (
        changed("return x + branch(site.norm_in(x - x.mean(1, keepdim=True)))"),
        "causality",
        "earlier logit",
    ),
    "mixes rows of a batch": (changed("return x + branch(site.norm_in(x - x.mean(0)))"), "causality", "other rows"),
    "norm declared but left out": (changed(RESULT, head='    norms = ("in", "out")\n'), "norms", "never called"),
    "norm called, result dropped": (
        changed("site.norm_in(x)\n        return x + branch(x)"),
        "norms",
        "reaches no logit",
    ),
    "norm that is none": (
        changed(RESULT, more="\n    def norm(self, d, bias):\n        return nn.Identity()\n"),
        "norms",
        "returns its input",
    ),
    "norm per head": (
        changed(
            RESULT,
            more="\n    def norm(self, d, bias):\n        return Halves(d)\n\n\nclass Halves(nn.LayerNorm):\n"
            "    def forward(self, x):\n        return x / x[..., :8].std(-1, keepdim=True)\n",
        ),
        "norms",
        "not 1",
    ),
    "one norm for all": (
        changed(
            RESULT,
            more="\n    def norm(self, d, bias):\n"
            "        self._one = getattr(self, '_one', None) or super().norm(d, bias)\n        return self._one\n",
        ),
        "parameter_count",
        "plain decoder",
    ),
    "not a number": (changed("return x + branch(site.norm_in(x)) / 0"), "shapes", "not finite"),
    "infinite gradient": (
        changed("return add(x, branch(site.norm_in(x)), alpha=self.dt) + (0 * x).abs().sqrt()"),
        "gradients",
        "not finite at step 0",
    ),
    "raises": (changed("raise RuntimeError('out of luck')"), "shapes", "RuntimeError: out of luck"),
    "wrong shape": (changed("return x + branch(site.norm_in(x)).mean(-1)"), "shapes", "Error"),
    "dead parameter": (
        changed(RESULT, more="\n    def extra(self, site):\n        return {'idle': torch.ones(1)}\n"),
        "gradients",
        "idle has no part in the loss",
    ),
    "parameter without gradient": (REZERO.replace('["blocks.*"]', '["alpha"]'), "gradients", "gradient zero at step 0"),
    "own random numbers": (
        changed("return add(x, branch(site.norm_in(x)), alpha=self.dt) + torch.rand(1)"),
        "same_seed",
        "differ",
    ),
    "breaks the graph": (
        changed("return add(x, branch(site.norm_in(x)), alpha=self.dt * float(x.sum().item() < 1e9))"),
        "graph_breaks",
        "break",
    ),
    "weights set where they are lost": (
        changed(
            RESULT,
            more="\n    def linear(self, n_in, n_out, role, layer, depth, bias):\n"
            "        linear = super().linear(n_in, n_out, role, layer, depth, bias)\n"
            "        nn.init.xavier_normal_(linear.weight)\n        return linear\n",
        ),
        "initial_weights",
        "weight_std",
    ),
    "INFO moves": (changed(RESULT, more="\n\nINFO['params']['dt'] = 0.25\n"), "info", "changed when the file runs"),
    "norm of an unknown kind": (
        changed(RESULT, head='    norms = ("in",)\n    norm_kind = "RMS"\n'),
        "info",
        "norm_kind: RMS is neither",
    ),
    "norm of an unknown kind, set later": (
        changed(
            RESULT,
            more="\n    def __init__(self, **params):\n        super().__init__(**params)\n"
            "        self.norm_kind = 'rmsnorm'\n",
        ),
        "shapes",
        "norm_kind: rmsnorm is neither",
    ),
    "one text for a tuple": (changed(RESULT, head='    norms = ("in")\n'), "info", "is no tuple of texts"),
    "text for a flag": (changed(RESULT, head='    norms = ("in",)\n    qk_norm = "no"\n'), "info", "is no bool"),
    "place that is none": (changed(RESULT, head='    norms = ("in", "inside")\n'), "info", "may hold only"),
    "step without site": (changed(RESULT).replace(", site: api.Site", ""), "info", "step must take"),
    "decay exception for nothing": (
        changed(RESULT, head='    norms = ("in",)\n    no_decay = ("mix",)\n'),
        "decay_groups",
        "mix",
    ),
    "step counted in an attribute": (changed(COUNTED, more=COUNTER), "state", "gives other logits"),
    "step counted in a list of the module": (
        changed(COUNTED, more=COUNTER)
        .replace("self.steps", "STEPS[0]")
        .replace("class Method", "STEPS = [0]\n\n\nclass Method"),
        "state",
        "gives other logits",
    ),
    "buffer that is not saved": (
        WARM_UP.replace("torch.zeros(())", "torch.zeros(()), persistent=False"),
        "state",
        "gives other logits",
    ),
    "scale of the first batch in an attribute": (
        changed(
            "return x + branch(site.norm_in(x)) * getattr(self, 'scale', 1.0)",
            info='    "dt_zero": "identity",\n',
            more="\n    def before_training(self, model, tokens):\n        self.scale = 0.5\n",
        ),
        "state",
        "belongs into parameters or persistent buffers",
    ),
    "hook that counts in an attribute": (
        changed(
            RESULT,
            more=COUNTER
            + "        with torch.no_grad():\n            model.wte.weight.mul_(1 - 0.1 / (1 + self.steps))\n",
        ),
        "state",
        "in a resumed run",
    ),
    "parameters made by a hook": (
        changed(
            RESULT,
            more="\n    def before_training(self, model, tokens):\n        model.late = nn.Parameter(torch.ones(1))\n",
        ),
        "state",
        "a fresh model does not take the saved tensors",
    ),
    "hook that raises": (
        changed(RESULT, more="\n    def after_step(self, model):\n        raise OSError('gone')\n"),
        "state",
        "after_step raises OSError: gone",
    ),
    "hook of another signature": (
        changed(RESULT, more="\n    def before_training(self, model):\n        pass\n"),
        "state",
        "before_training raises TypeError",
    ),
    "hook that writes NaN": (
        changed(
            RESULT,
            more="\n    def after_step(self, model):\n        with torch.no_grad():\n"
            "            model.wpe.weight.div_(0)\n",
        ),
        "state",
        "wpe.weight: not finite after 2 steps",
    ),
    "asked-for variant is not built": (LNS, "parameters", "make the same model, bit for bit"),
    "choice of a grid that changes nothing": (
        LNS.replace('"grid": {', '"grid": {"scaling": ["LNS", "lns", "none"], ').replace("== 'LNS'", "== 'none'"),
        "parameters",
        "scaling = LNS and lns make the same model",
    ),
    "parameter that nothing reads": (
        changed(RESULT, info='    "params": {"dt": 0.5, "sharp": True},\n    "dt_zero": "identity",\n'),
        "parameters",
        "sharp = True and False make the same model",
    ),
    "parameter overwritten": (
        changed(
            "return x + self.gamma * branch(site.norm_in(x))",
            info='    "params": {"gamma": 0.5},\n    "dt_zero": "identity",\n',
            more="\n    def __init__(self, **params):\n        super().__init__(**params)\n        self.gamma = 0.5\n",
        ),
        "parameters",
        "(the object has 0.5 for both)",
    ),
    "hook misspelt": (
        changed(RESULT, more="\n    def final_nrom(self, d, bias):\n        return self.norm(d, bias)\n"),
        "loads",
        "did you mean final_norm",
    ),
    "no method": (GOOD.replace("class Method(api.Method)", "class Method"), "loads", "must be a subclass"),
    "leaves at once": ("raise SystemExit(3)\n" + GOOD, "loads", "SystemExit"),
    "does not import": ("from torch import no_such_name\n" + GOOD, "loads", "no_such_name"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_fails_its_check_with_a_sentence(tmp_path: Path, fault: str) -> None:
    text, check, said = BROKEN[fault]
    found = failed(written(tmp_path, text))
    assert check in found, found
    assert said in found[check]
    assert "\n" not in found[check]
    assert "Traceback" not in found[check]
