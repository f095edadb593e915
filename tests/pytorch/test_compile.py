"""Steps in functions under torch.compile: no graph breaks, and counted once each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

import torch
import torch._inductor.config
from torch.optim import SGD, Adam, Optimizer

from kineto_step_tracker import KinetoStepTracker, pytorch
from tests.pytorch.training import Plain, sgd, weights

# The compiler warns of its own workings, for one that it ignores PyTorch's record_function.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(
    *optimizers: Optimizer, backend: str = "eager", fullgraph: bool = True
) -> Callable[[], None]:
    @torch.compile(backend=backend, fullgraph=fullgraph)
    def iteration() -> None:
        for optimizer in optimizers:
            optimizer.step()

    return iteration


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_whole_graph_counts_each_step(backend: str) -> None:
    pytorch.install(kineto=False)
    optimizers = Plain(weights()), Plain(weights())
    before = optimizers[0].param_groups[0]["params"][0].clone()
    iteration = compiled(*optimizers, backend=backend)
    for number in range(1, 6):
        iteration()
        assert KinetoStepTracker.current_step() == number
    assert KinetoStepTracker.step_counts() == {"Plain#1": 5, "Plain#2": 5}
    assert torch.allclose(optimizers[0].param_groups[0]["params"][0], before - 0.5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_does_not_remove_the_count() -> None:
    pytorch.install(kineto=False)
    optimizer = Plain(weights())
    # Its cache would hide that the operator is removed, or not any more.
    with torch._inductor.config.patch(force_disable_caches=True):
        iteration = compiled(optimizer, backend="inductor")
        for _ in range(3):
            iteration()
    assert KinetoStepTracker.step_counts() == {"Plain#1": 3}


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_pytorchs_own_optimizers_that_break_the_graph(kind: type[Optimizer]) -> None:
    pytorch.install(kineto=False)
    optimizer = kind(weights())  # type: ignore[call-arg]
    iteration = compiled(optimizer, fullgraph=False)
    for _ in range(5):
        iteration()
    assert KinetoStepTracker.step_counts() == {f"{kind.__name__}#1": 5}


def test_forward_backward_and_a_compiled_step_method() -> None:
    pytorch.install(kineto=False)
    model = torch.nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(5):
        model(torch.ones(2)).sum().backward()
        step()
    assert KinetoStepTracker.step_counts() == {"SGD#1": 5}


def test_eager_and_compiled_steps_share_a_count() -> None:
    pytorch.install(kineto=False)
    optimizer = Plain(weights())
    iteration = compiled(optimizer)
    optimizer.step()
    iteration()
    KinetoStepTracker.reset()
    iteration()
    optimizer.step()
    assert KinetoStepTracker.step_counts() == {"Plain#1": 2}


def test_a_graph_is_compiled_anew_after_install_and_uninstall() -> None:
    optimizer = Plain(weights())
    iteration = compiled(optimizer)
    iteration()
    for _ in range(2):
        with pytorch.installed(kineto=False):
            before = KinetoStepTracker.current_step()
            iteration()
            assert KinetoStepTracker.current_step() == before + 1
        iteration()
        assert KinetoStepTracker.current_step() == before + 1


def test_optimizers_of_one_function_keep_their_names_apart() -> None:
    pytorch.install(kineto=False)

    @torch.compile(backend="eager", fullgraph=True)
    def step(optimizer: Any) -> None:
        optimizer.step()

    first, second = Plain(weights()), Plain(weights())
    for _ in range(3):
        step(first)
        step(second)
    assert KinetoStepTracker.step_counts() == {"Plain#1": 3, "Plain#2": 3}
    del first
    assert KinetoStepTracker.step_counts() == {"Plain#2": 3}


def test_stock_itself_breaks_the_graph_of_pytorchs_own_optimizers() -> None:
    """Why fullgraph is tried with an optimizer of a user's own. If this fails, try theirs."""
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\._dynamo\.graph_break"):
        compiled(sgd())()
