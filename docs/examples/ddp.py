"""DistributedDataParallel in two processes, two optimizers each: all ranks count the same step.

Each process has a tracker of its own. A trace of iterations 1000 to 1010 is one of the same
iterations on all ranks only if all of them count alike, whatever the number of their optimizers.

    pip install '.[torch]' && python docs/examples/ddp.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kineto_step_tracker import KinetoStepTracker, pytorch

RANKS = 2


def train(rank: int, meeting_point: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=RANKS
    )
    pytorch.install()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
    first, _, last = model.module
    optimizers = torch.optim.SGD(first.parameters()), torch.optim.AdamW(last.parameters())
    for _ in range(100):
        model(torch.randn(4, 8)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    counts = KinetoStepTracker.step_counts()
    found: list[str] = [""] * RANKS
    dist.all_gather_object(found, f"step {KinetoStepTracker.current_step()}, {counts}")
    if rank == 0:
        for number, line in enumerate(found):
            print(f"rank {number}: {line}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        # Forked, so that PyTorch is imported once and not by each.
        torch.multiprocessing.start_processes(
            train, (str(Path(folder, "store")),), nprocs=RANKS, start_method="fork"
        )
