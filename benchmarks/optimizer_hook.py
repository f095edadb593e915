"""What does counting add to an optimizer's step, beside PyTorch's own hook?

    python benchmarks/optimizer_hook.py

It calls the two hooks as PyTorch does after each step: for one optimizer, and for the 300 of a
training with one optimizer a parameter, in turns in one process. Each turn takes the best of many
short runs; the ratio, the median of the turns' own, is what counts. Needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from timeit import repeat

import torch
import torch.profiler
from torch.autograd import profiler
from torch.optim import SGD, Optimizer

from kineto_step_tracker import pytorch

TURNS = 9


def nanoseconds(hook: Callable[..., None], optimizers: list[Optimizer]) -> float:
    def iterate() -> None:
        for optimizer in optimizers:
            hook(optimizer, (), {})

    number = max(1, 300 // len(optimizers))
    seconds = min(repeat(iterate, number=number, repeat=100))
    return seconds / number / len(optimizers) * 1e9


def ours(optimizers: list[Optimizer]) -> float:
    # As with KINETO_USE_DAEMON, where alone PyTorch counts at all.
    with pytorch.installed(kineto=True):
        return nanoseconds(pytorch._count, optimizers)


def stocks(optimizers: list[Optimizer]) -> float:
    # The counts that uninstall() has handed over would make it slower.
    profiler.KinetoStepTracker._step_dict.clear()
    return nanoseconds(torch.profiler._optimizer_post_hook, optimizers)


def main() -> None:
    print(f"{'optimizers':>10}{'ours':>10}{'stock':>10}  ns a step")
    for number in (1, 300):
        weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(number)]
        optimizers: list[Optimizer] = [SGD([weight], lr=0.1) for weight in weights]
        turns = [(ours(optimizers), stocks(optimizers)) for _ in range(TURNS)]
        mine, theirs = (median(column) for column in zip(*turns, strict=True))
        ratio = median(mine / theirs for mine, theirs in turns)
        print(f"{number:10}{mine:10.0f}{theirs:10.0f}  {ratio:.2f} of stock's")


if __name__ == "__main__":
    main()
