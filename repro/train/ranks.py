"""Several processes on one run: who takes what, and sums over all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def rank_and_world() -> tuple[int, int]:
    """This process's number and how many there are; (0, 1) where there is one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def summed(values: list[float], device: torch.device) -> list[float]:
    """Each value summed over all processes, in float64; nothing is padded, so nothing counts twice."""
    if rank_and_world()[1] == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor)
    return [float(value) for value in tensor]


def mean_over_ranks(value: Tensor) -> Tensor:
    """The mean over all processes of a number on their devices; nothing waits for it."""
    world = rank_and_world()[1]
    if world == 1:
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total / world


def highest(value: int, device: torch.device) -> int:
    """The largest of all processes' numbers: what one of them has seen, all act on."""
    if rank_and_world()[1] == 1:
        return value
    tensor = torch.tensor(value, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return int(tensor)


def is_peer_loss(error: BaseException) -> bool:
    """Whether an exception says that another process of the run is gone, which is no fault of the run."""
    words = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
    distributed = isinstance(error, dist.DistError) or any(word in str(error) for word in words)
    return distributed and not isinstance(error, torch.OutOfMemoryError)
