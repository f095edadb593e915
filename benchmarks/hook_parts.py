"""Where does the time go that our hook takes in a backward with 300 optimizers?

    python benchmarks/hook_parts.py

Each of the first three is a hook that does one thing more than the one above, timed where it is
called. The two after them count as often, but always for the same optimizer: what they need is
still in the caches, which shows what the others wait for. The last is the real one. Needs PyTorch.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from statistics import median

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from kineto_step_tracker import Requester, StepTracker
from kineto_step_tracker.bench import optimizers
from kineto_step_tracker.bench.report import human

Hook = Callable[[Optimizer, object, object], None]

tracker = StepTracker()
only = tracker.requester("only")
handles: dict[int, Requester] = {}
is_compiling = torch.compiler.is_dynamo_compiling


def make_a_handle(optimizer: Optimizer, args: object, kwargs: object) -> None:
    handles[id(optimizer)] = tracker.requester(f"SGD#{len(handles)}")


def nothing(optimizer: Optimizer, args: object, kwargs: object) -> None:
    return


def ask_whether_it_is_compiled(optimizer: Optimizer, args: object, kwargs: object) -> None:
    is_compiling()


def look_the_handle_up(optimizer: Optimizer, args: object, kwargs: object) -> None:
    is_compiling()
    handles[id(optimizer)]


def count(optimizer: Optimizer, args: object, kwargs: object) -> None:
    is_compiling()
    handles[id(optimizer)].increment()


def count_one_by_handle(optimizer: Optimizer, args: object, kwargs: object) -> None:
    is_compiling()
    only.increment()


def count_one_by_name(optimizer: Optimizer, args: object, kwargs: object) -> None:
    is_compiling()
    tracker.increment_step("only")


HOOKS = (
    *(nothing, ask_whether_it_is_compiled, look_the_handle_up, count),
    *(count_one_by_handle, count_one_by_name),
)


def seconds(hook: Hook, iterate: Callable[[], object]) -> float:
    registered = torch_optimizer.register_optimizer_step_post_hook(hook)
    try:
        return optimizers.time_in_the_hook(iterate, 1)
    finally:
        registered.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=15, help="measurements of each hook")
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    found: dict[Hook, list[float]] = defaultdict(list)
    real: list[float] = []
    with optimizers.many_optimizers() as iterate:
        registered = torch_optimizer.register_optimizer_step_post_hook(make_a_handle)
        iterate()
        registered.remove()
        for _ in range(turns):
            for hook in HOOKS:
                found[hook].append(seconds(hook, iterate))
            with optimizers.with_our_hook():
                real.append(optimizers.time_in_the_hook(iterate, 1))
    least = median(found[nothing])
    rows = {hook.__name__.replace("_", " "): median(found[hook]) for hook in HOOKS[1:]}
    rows["our hook"] = median(real)
    for name, median_ in rows.items():
        print(f"{name:28}{human((median_ - least) / optimizers.MANY, 's'):>8} a hook")


if __name__ == "__main__":
    main()
