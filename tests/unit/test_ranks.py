"""Case T15: validation over two processes counts every item once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from repro.train.module import validation_sums

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)

class Items:
    def validation_batches(self, tokens):
        for loss in (1.0, 2.0, 3.0, 4.0, 5.0):
            yield torch.tensor([loss]), torch.zeros(1)

    def loss_sums(self, net, batch):
        return batch[0].sum(), batch[1].numel()

print(*validation_sums(Items(), torch.nn.Linear(1, 1), 5, torch.device("cpu")))
dist.destroy_process_group()
"""


def test_case_t15_five_items_on_two_processes(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "meet")]
    both = [subprocess.Popen([*words, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert outputs == ["15.0 5\n"] * 2
