"""beta x + f(x): scaled skip without any norm, paper D's form; beta stands on the skip, not on the branch."""

from torch import Tensor, add, nn

from repro.nn import method_api as api

INFO = {
    "title": "Scaled skip",
    "ref": "paper_d",
    "tracks": ["lm"],
    "params": {"beta": 0.5},
    "grid": {"beta": [0.0, 0.25, 0.5, 0.75, 1.0]},
    "dt_zero": "none",
}


class Method(api.Method):
    """No norms, no final norm."""

    def step(self, x: Tensor, branch: api.Branch, site: api.Site) -> Tensor:
        """x [batch, tokens, d] -> the same shape."""
        return add(branch(x), x, alpha=self.beta)

    def final_norm(self, d: int, bias: bool) -> nn.Module:
        """None."""
        return nn.Identity()
