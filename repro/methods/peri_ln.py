"""x + dt No(f(Ni x)): Peri-LN with a step, paper A's form (dt = 1: Kim et al. 2025); dt stands outside No."""

from torch import Tensor, add

from repro.nn import method_api as api

INFO = {"title": "Peri-LN", "ref": "paper_a", "tracks": ["lm"], "params": {"dt": 1.0}, "dt_zero": "identity"}


class Method(api.Method):
    """Norm on what a branch reads and on what it writes."""

    norms = ("in", "out")

    def step(self, x: Tensor, branch: api.Branch, site: api.Site) -> Tensor:
        """x [batch, tokens, d] -> the same shape."""
        return add(x, site.norm_out(branch(site.norm_in(x))), alpha=self.dt)
