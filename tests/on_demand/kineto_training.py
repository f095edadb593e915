"""Training with the real PyTorch, for the tests that need it to do something of its own.

    python tests/on_demand/kineto_training.py KIND [ARGUMENT...]

It prints "begun" when it has stepped, goes on until its standard input is closed, and leaves what
it is told in a line there to its kind.
"""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed
import torch.profiler
from torch.utils.data import DataLoader, TensorDataset

from kineto_step_tracker import KinetoStepTracker, pytorch

PAUSE = 0.005


def lines() -> Iterator[str | None]:
    """Yield what comes on standard input, None as long as nothing does."""
    while True:
        time.sleep(PAUSE)
        if select.select([sys.stdin], [], [], 0)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            yield line.strip()
        yield None


class Model:
    """Something to take a step of."""

    def __init__(self) -> None:
        self.linear = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.linear.parameters())
        self.iterations = 0

    def step(self) -> None:
        with torch.profiler.record_function(f"iteration#{self.iterations}"):
            self.linear(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()
        self.iterations += 1
        if self.iterations == 1:
            print("begun", flush=True)


def profiled() -> None:
    """Begin and end a trace of torch.profiler's at every line; print how many steps it holds."""
    model = Model()
    with contextlib.ExitStack() as running:
        profile = None
        for line in lines():
            model.step()
            if line is None:
                continue
            if profile is None:
                profile = running.enter_context(
                    torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
                )
                first = model.iterations
                print("profiling", flush=True)
            else:
                running.close()
                held = sum(event.name.startswith("iteration#") for event in profile.events())
                print(held == model.iterations - first, flush=True)
                profile = None


def rank(number: str, store: str, gate: str, hold_at: str) -> None:
    """One of two in lockstep; both wait at a step until there is a file."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(number), world_size=2
    )
    model = Model()
    going = lines()
    while True:
        stop = torch.tensor([next(going, "") == ""], dtype=torch.int)
        torch.distributed.all_reduce(stop)
        if stop.item():
            break
        while KinetoStepTracker.current_step() == int(hold_at) and not Path(gate).exists():
            time.sleep(PAUSE)
        model.step()
    torch.distributed.destroy_process_group()


def spawned() -> None:
    """Data comes from workers that import PyTorch themselves, and so ask as well."""
    model = Model()
    data = TensorDataset(torch.ones(10**6, 4))
    loader = iter(DataLoader(data, num_workers=1, multiprocessing_context="spawn"))
    for _ in lines():
        next(loader)
        model.step()


def still() -> None:
    """Never take a step."""
    print("begun", flush=True)
    for _ in lines():
        pass


if __name__ == "__main__":
    pytorch.install()
    {function.__name__: function for function in (profiled, rank, spawned, still)}[sys.argv[1]](
        *sys.argv[2:]
    )
