"""What counting adds to PyTorch's optimizers, beside PyTorch's own hook.

It imports PyTorch, what puts the tracker into it, the clocks, the contenders and the report.

An iteration takes milliseconds and varies by tenths of one, many times what its hooks take. So
besides the whole, the hooks are timed where they are called, each time that they are called:
with the caches in the state in which the iteration has left them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.profiler
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import optimizer as torch_optimizer

from kineto_step_tracker import KinetoStepTracker, pytorch
from kineto_step_tracker.bench.clocks import Work, in_turns, without_collections
from kineto_step_tracker.bench.contenders import Callback, Hook, kineto_step
from kineto_step_tracker.bench.report import Key, Question

MANY = 300

# After a hook is put in, its first calls register requesters.
_WARM_UP = 2
_RUNS = 10
_ITERATIONS = {1: 60, MANY: 1}

_hooks = torch_optimizer._global_optimizer_post_hooks


def measure(turns: int, watch: Callable[[float], object]) -> dict[Key, list[float]]:
    """Return the seconds an iteration takes, and those that its hooks take, by kind of hook."""
    found: dict[Key, list[float]] = {}
    threads = torch.get_num_threads()
    with ExitStack() as afterwards:
        afterwards.callback(torch.set_num_threads, threads)
        afterwards.callback(_hooks.update, _hooks.copy())
        afterwards.callback(_hooks.clear)
        afterwards.enter_context(_counts_as_they_were())
        torch.set_num_threads(1)
        _hooks.clear()
        for done, (question, number, make) in enumerate(
            ((Question.OPTIMIZER, 1, _one_optimizer), (Question.BACKWARD, MANY, many_optimizers))
        ):
            with make() as iterate:
                works = {
                    Key(question, hook, number): Work("iterate()", {"iterate": iterate}, context)
                    for hook, context in _CONTEXTS.items()
                }
                found |= in_turns(works, turns, partial(_watch_quarter, watch, 2 * done))
                found |= _hooks_alone(
                    iterate, number, turns, partial(_watch_quarter, watch, 2 * done + 1)
                )
    return found


@contextmanager
def _counts_as_they_were() -> Iterator[None]:
    stock = torch.autograd.profiler.KinetoStepTracker
    step, counts = stock._current_step, stock._step_dict.copy()
    try:
        yield
    finally:
        stock._current_step = step
        stock._step_dict.clear()
        stock._step_dict.update(counts)
        KinetoStepTracker.reset()


def _watch_quarter(watch: Callable[[float], object], done: int, share: float) -> None:
    watch((done + share) / 4)


@contextmanager
def _one_optimizer() -> Iterator[Callable[[], object]]:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = AdamW(model.parameters())
    model(torch.ones(1, 16)).sum().backward()
    yield optimizer.step


@contextmanager
def many_optimizers() -> Iterator[Callable[[], None]]:
    """Make a forward and a backward in which each parameter's own optimizer steps."""
    weights: list[torch.Tensor] = [torch.nn.Parameter(torch.ones(1)) for _ in range(MANY)]

    def stepping(optimizer: Optimizer) -> Callable[[torch.Tensor], None]:
        def step(weight: torch.Tensor) -> None:
            optimizer.step()

        return step

    def iterate() -> None:
        torch.cat(weights).sum().backward()  # type: ignore[no-untyped-call]

    # The collector does not see that a weight holds its hook, and the hook the weight.
    with ExitStack() as hooks:
        for weight in weights:
            step = stepping(SGD([weight], lr=1e-9))
            hook = weight.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
            hooks.callback(hook.remove)
        yield iterate


def _hooks_alone(
    iterate: Callable[[], object], number: int, turns: int, watch: Callable[[float], object]
) -> dict[Key, list[float]]:
    """Return the seconds that hooks take in an iteration, less those that an empty one takes."""
    hooks = (Hook.EMPTY, Hook.OURS, Hook.STOCK)
    seconds: dict[Hook, list[float]] = {hook: [] for hook in hooks}
    for turn in range(turns):
        for hook in hooks:
            with _CONTEXTS[hook](), without_collections():
                seconds[hook].append(time_in_the_hook(iterate, _ITERATIONS[number]))
        watch((turn + 1) / turns)
    return {
        Key(Question.HOOK, hook, number): [
            mine - empty for mine, empty in zip(seconds[hook], seconds[Hook.EMPTY], strict=True)
        ]
        for hook in (Hook.OURS, Hook.STOCK)
    }


def time_in_the_hook(iterate: Callable[[], object], iterations: int) -> float:
    """Return the seconds of an iteration in the only hook there is: the best of a few runs.

    A run is of so many iterations.
    """
    ((number, hook),) = _hooks.items()
    total = 0.0

    def timed(*arguments: Any) -> None:
        nonlocal total
        began = perf_counter()
        hook(*arguments)
        total += perf_counter() - began

    for _ in range(_WARM_UP):
        iterate()
    totals = []
    _hooks[number] = timed
    for _ in range(_RUNS):
        total = 0.0
        for _ in range(iterations):
            iterate()
        totals.append(total / iterations)
    _hooks[number] = hook
    return min(totals)


def _empty_hook(optimizer: Optimizer, args: object, kwargs: object) -> None:
    return


@contextmanager
def _with_empty_hook() -> Iterator[None]:
    handle = torch_optimizer.register_optimizer_step_post_hook(_empty_hook)
    yield
    handle.remove()


@contextmanager
def with_our_hook() -> Iterator[None]:
    """Let the tracker count PyTorch's optimizers, and a C function stand in for Kineto's step."""
    # As with KINETO_USE_DAEMON, where alone PyTorch counts at all.
    with kineto_step(Callback.C), pytorch.installed(kineto=True):
        yield


@contextmanager
def _with_stock_hook() -> Iterator[None]:
    # The counts that uninstall() has handed over would make it slower.
    torch.autograd.profiler.KinetoStepTracker._step_dict.clear()
    handle = torch_optimizer.register_optimizer_step_post_hook(torch.profiler._optimizer_post_hook)
    with kineto_step(Callback.C):
        yield
    handle.remove()


_CONTEXTS: dict[Hook, Callable[[], AbstractContextManager[object]]] = {
    Hook.NONE: nullcontext,
    Hook.EMPTY: _with_empty_hook,
    Hook.OURS: with_our_hook,
    Hook.STOCK: _with_stock_hook,
}
