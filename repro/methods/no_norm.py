"""x + f(x): no norm anywhere, a control (beta_skip with beta = 1)."""

from torch import Tensor, nn

from repro.nn import method_api as api

INFO = {"title": "No norm", "ref": "control", "tracks": ["lm"], "params": {}, "dt_zero": "identity"}


class Method(api.Method):
    """No norms, no final norm."""

    def step(self, x: Tensor, branch: api.Branch, site: api.Site) -> Tensor:
        """x [batch, tokens, d] -> the same shape."""
        return x + branch(x)

    def final_norm(self, d: int, bias: bool) -> nn.Module:
        """None."""
        return nn.Identity()
