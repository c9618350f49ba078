"""x + f(x), every map W z of a block -> N(W z), N = RMSNorm, no pre-norm: SimpleGPT, paper C's form."""

from torch import Tensor, nn

from repro.nn import method_api as api

INFO = {"title": "SimpleNorm", "ref": "paper_c", "tracks": ["lm"], "params": {}, "dt_zero": "identity"}


class Method(api.Method):
    """A norm with its own gain after q, k, v, o, up and down, each on the whole vector; no biases."""

    norm_kind = "rms"
    split_qkv = True

    def linear(self, n_in: int, n_out: int, role: api.Role, layer: int, depth: int, bias: bool) -> nn.Module:
        """The map without bias, and its norm."""
        return nn.Sequential(nn.Linear(n_in, n_out, bias=False), self.norm(n_out, bias))

    def step(self, x: Tensor, branch: api.Branch, site: api.Site) -> Tensor:
        """x [batch, tokens, d] -> the same shape."""
        return x + branch(x)
