"""x + dt f(N x): Pre-LN with a step, paper A's form (dt = 1: GPT-2, Xiong et al. 2020)."""

from torch import Tensor, add

from repro.nn import method_api as api

INFO = {"title": "Pre-LN", "ref": "paper_a", "tracks": ["lm"], "params": {"dt": 1.0}, "dt_zero": "identity"}


class Method(api.Method):
    """Norm on what a branch reads; the stream itself stays free of norms."""

    norms = ("in",)

    def step(self, x: Tensor, branch: api.Branch, site: api.Site) -> Tensor:
        """x [batch, tokens, d] -> the same shape."""
        return add(x, branch(site.norm_in(x)), alpha=self.dt)
