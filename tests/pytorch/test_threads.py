"""Optimizers that step, begin and end on many threads, and installing under their feet."""

from __future__ import annotations

import gc
import threading
from functools import partial

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

import torch
from torch.autograd import profiler
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, Optimizer
from torch.optim import optimizer as torch_optimizer

from kineto_step_tracker import KinetoStepTracker, pytorch
from tests.conftest import run_together
from tests.pytorch.training import Plain, in_pytorch, sgd, weights

pytestmark = pytest.mark.usefixtures("restless")

STOCK = profiler.KinetoStepTracker


@pytest.mark.parametrize("threads", [4, 8])
def test_data_parallel_training(threads: int, kineto: list[int]) -> None:
    """Each thread has a replica with two optimizers; they meet in every iteration."""
    iterations = 25
    pytorch.install(kineto=True)
    gradients_are_there = threading.Barrier(threads)
    all_have_stepped = threading.Barrier(threads)

    def train() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        optimizers = SGD(model[0].parameters(), lr=0.01), Adam(model[1].parameters())
        kept.extend(optimizers)
        for iteration in range(1, iterations + 1):
            mse_loss(model(torch.ones(2, 4)), torch.ones(2, 1)).backward()  # type: ignore[no-untyped-call]
            gradients_are_there.wait()
            for optimizer in optimizers:
                optimizer.step()
            all_have_stepped.wait()
            assert KinetoStepTracker.current_step() == iteration

    kept: list[Optimizer] = []
    run_together(*[train] * threads)
    assert KinetoStepTracker.step_counts() == {
        f"{kind}#{number}": iterations
        for kind in ("SGD", "Adam")
        for number in range(1, threads + 1)
    }
    assert len(kineto) == iterations


def test_one_optimizer_on_several_threads() -> None:
    pytorch.install(kineto=False)
    optimizer = Plain(weights())

    def step() -> None:
        for _ in range(500):
            optimizer.step()

    run_together(*[step] * 4)
    assert KinetoStepTracker.step_counts() == {"Plain#1": 2000}
    assert KinetoStepTracker.current_step() == 2000


def test_first_steps_of_one_optimizer_on_several_threads() -> None:
    """All of them register it: under one name, and no step is lost."""
    pytorch.install(kineto=False)
    for repetition in range(1, 101):
        optimizer = Plain(weights())
        run_together(*[optimizer.step] * 4)
        assert KinetoStepTracker.step_counts() == {"Plain#1": 4 * repetition}
        del optimizer


def test_optimizers_that_begin_and_end_on_many_threads() -> None:
    """Every one alive has a name of its own, and in the end no name is left behind."""
    pytorch.install(kineto=False)

    def live_and_die(seed: int) -> None:
        for number in range(50):
            optimizers = [Plain(weights()) for _ in range(3)]
            for optimizer in optimizers:
                optimizer.step()
            names = {pytorch._name_of(optimizer) for optimizer in optimizers}
            assert len(names) == 3
            assert names <= KinetoStepTracker.step_counts().keys()
            if (number + seed) % 10 == 0:
                # Collected on whichever thread comes to it.
                optimizers[0].cycle = optimizers  # type: ignore[attr-defined]

    run_together(*[partial(live_and_die, seed) for seed in range(4)])
    gc.collect()
    assert KinetoStepTracker.step_counts() == {}
    last = Plain(weights())
    last.step()
    assert KinetoStepTracker.step_counts().keys() == {"Plain#1"}


def test_uninstall_while_threads_step() -> None:
    """What is handed over is what had been counted at some moment of the call."""
    pytorch.install(kineto=False)
    optimizers = [Plain(weights()) for _ in range(4)]
    for optimizer in optimizers:
        optimizer.step()
    done = [1] * len(optimizers)
    going, stop = threading.Semaphore(0), threading.Event()

    def step(number: int) -> None:
        while not stop.is_set():
            optimizers[number].step()
            done[number] += 1
            if done[number] == 50:
                going.release()

    def uninstall() -> None:
        try:
            for _ in optimizers:
                going.acquire()
            before = list(done)
            pytorch.uninstall()
            after = list(done)
        finally:
            stop.set()
        handed = [STOCK._step_dict[f"Plain#{number}"] for number in range(1, 5)]
        for least, count, most in zip(before, handed, after, strict=True):
            # A thread counts in done only after its step, which may be in the tracker already.
            assert least <= count <= most + 1
        assert STOCK._current_step == max(handed)

    run_together(uninstall, *[partial(step, number) for number in range(len(optimizers))])


def test_a_step_during_uninstall_is_handed_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may step between the first hand-over and the removal of the hook."""
    optimizer = sgd()
    removable = torch_optimizer.register_optimizer_step_post_hook

    class Handle:
        def __init__(self, hook: object) -> None:
            self._handle = removable(hook)  # type: ignore[arg-type]

        def remove(self) -> None:
            thread = threading.Thread(target=optimizer.step)
            thread.start()
            thread.join()
            self._handle.remove()

    monkeypatch.setattr(torch_optimizer, "register_optimizer_step_post_hook", Handle)
    pytorch.install(kineto=False)
    for _ in range(3):
        optimizer.step()
    pytorch.uninstall()
    assert STOCK._step_dict == {"SGD#1": 4}
    assert STOCK._current_step == 4


def test_an_optimizer_that_dies_during_uninstall_is_not_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizers = [sgd(), sgd()]

    class Counts(dict[str, int]):
        def __setitem__(self, name: str, count: int) -> None:
            super().__setitem__(name, count)
            if name == "SGD#2" and len(optimizers) == 2:
                optimizers.pop()

    monkeypatch.setattr(STOCK, "_step_dict", Counts())
    pytorch.install(kineto=False)
    for optimizer in optimizers:
        optimizer.step()
    del optimizer
    pytorch.uninstall()
    assert STOCK._step_dict == {"SGD#1": 1}


def test_a_name_claimed_in_vain_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a thread registers an optimizer as number 2, another finds that 1 is free by now."""
    pytorch.install(kineto=False)
    early, optimizers = [sgd()], [sgd()]

    class Names(dict[str, object]):
        def setdefault(self, name: str, claim: object) -> object:  # type: ignore[override]
            if name == "SGD#2" and early:
                early.clear()
                optimizers[0].step()
            return super().setdefault(name, claim)

    with monkeypatch.context() as patch:
        patch.setattr(pytorch, "_names", Names())
        early[0].step()
        optimizers[0].step()
        assert KinetoStepTracker.step_counts() == {"SGD#1": 3}
        late = sgd()
        late.step()
        assert KinetoStepTracker.step_counts() == {"SGD#1": 3, "SGD#2": 4}
        del late
        optimizers.clear()


def test_with_statements_on_many_threads() -> None:
    """The last to be left uninstalls, whichever it is."""

    def train() -> None:
        for _ in range(20):
            with pytorch.installed(kineto=False):
                assert pytorch.is_installed()
                assert in_pytorch() == (KinetoStepTracker, KinetoStepTracker)

    run_together(*[train] * 4)
    assert not pytorch.is_installed()
    assert in_pytorch() == (STOCK, STOCK)
