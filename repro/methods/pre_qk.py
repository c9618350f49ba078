"""x + f(N x) with q -> N q, k -> N k on whole vectors: paper C's baseline (full-vector form, as in OLMo 2)."""

from torch import Tensor

from repro.nn import method_api as api

INFO = {"title": "Pre-LN + QK-norm", "ref": "paper_c", "tracks": ["lm"], "params": {}, "dt_zero": "identity"}


class Method(api.Method):
    """Pre-LN whose attention logits are bounded by RMSNorm on q and k."""

    norms = ("in",)
    qk_norm = True

    def step(self, x: Tensor, branch: api.Branch, site: api.Site) -> Tensor:
        """x [batch, tokens, d] -> the same shape."""
        return x + branch(site.norm_in(x))
