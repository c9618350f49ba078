"""N(x + dt f(x)): Post-LN with a step, paper A's form (dt = 1: Vaswani et al. 2017)."""

from torch import Tensor, add

from repro.nn import method_api as api

INFO = {"title": "Post-LN", "ref": "paper_a", "tracks": ["lm"], "params": {"dt": 1.0}, "dt_zero": "norm"}


class Method(api.Method):
    """Norm on the sum of stream and branch; the common final norm stays, where it adds only its gain."""

    norms = ("out",)

    def step(self, x: Tensor, branch: api.Branch, site: api.Site) -> Tensor:
        """x [batch, tokens, d] -> the same shape."""
        return site.norm_out(add(x, branch(x), alpha=self.dt))
