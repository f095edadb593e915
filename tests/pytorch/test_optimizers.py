"""Optimizers as requesters: their names and lives, and what training loops count."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

import torch
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer
from torch.optim import optimizer as torch_optimizer

from kineto_step_tracker import KinetoStepTracker, pytorch
from tests.pytorch.training import Plain, sgd, weights

current_step = KinetoStepTracker.current_step
step_counts = KinetoStepTracker.step_counts


@pytest.fixture(autouse=True)
def installed() -> None:
    pytorch.install(kineto=False)


class TestNames:
    def test_are_the_class_and_the_smallest_free_number(self) -> None:
        optimizers = [sgd(), AdamW(weights()), AdamW(weights()), Plain(weights()), sgd()]
        for optimizer in optimizers:
            optimizer.step()
        assert list(step_counts()) == ["SGD#1", "AdamW#1", "AdamW#2", "Plain#1", "SGD#2"]

        del optimizer, optimizers[1]
        newcomers = [AdamW(weights()), AdamW(weights())]
        for newcomer in newcomers:
            newcomer.step()
        assert step_counts().keys() == {
            "SGD#1",
            "AdamW#1",
            "AdamW#2",
            "AdamW#3",
            "Plain#1",
            "SGD#2",
        }

    def test_are_given_at_the_first_step(self) -> None:
        first, second = sgd(), sgd()
        assert step_counts() == {}
        second.step()
        assert step_counts() == {"SGD#1": 1}
        first.step()
        assert step_counts() == {"SGD#1": 1, "SGD#2": 1}

    def test_are_erased_with_the_optimizer(self) -> None:
        optimizer = sgd()
        optimizer.step()
        del optimizer
        assert step_counts() == {}
        assert current_step() == 1

    def test_are_erased_when_a_cycle_is_collected(self) -> None:
        optimizer: Any = sgd()
        optimizer.myself = optimizer
        optimizer.step()
        del optimizer
        assert step_counts() == {"SGD#1": 1}
        gc.collect()
        assert step_counts() == {}

    def test_are_erased_from_pytorchs_class_after_uninstall(self) -> None:
        optimizer = sgd()
        optimizer.step()
        pytorch.uninstall()
        stock = torch.autograd.profiler.KinetoStepTracker
        assert stock._step_dict == {"SGD#1": 1}
        del optimizer
        assert stock._step_dict == {}

    def test_are_kept_over_uninstall(self) -> None:
        first, second = sgd(), sgd()
        first.step()
        second.step()
        pytorch.uninstall()
        for _ in range(5):
            torch.autograd.profiler.KinetoStepTracker.increment_step("mine")
        pytorch.install(kineto=False)
        second.step()
        first.step()
        # Not 2: they go on from where the others are.
        assert step_counts() == {"SGD#1": 7, "SGD#2": 7, "mine": 6}

    def test_of_an_optimizer_that_steps_in_its_own_finaliser(self) -> None:
        class Last(SGD):
            def __del__(self) -> None:
                self.step()

        optimizer = Last(weights(), lr=0.1)
        optimizer.step()
        del optimizer
        gc.collect()
        assert (current_step(), step_counts()) == (2, {})

    @pytest.mark.parametrize(
        "duplicate", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))]
    )
    def test_a_copy_is_a_requester_of_its_own(
        self, duplicate: Callable[[Optimizer], Optimizer]
    ) -> None:
        original = AdamW(weights())
        for _ in range(3):
            original.step()
        copied = duplicate(original)
        assert step_counts() == {"AdamW#1": 3}
        copied.step()
        original.step()
        assert step_counts() == {"AdamW#1": 4, "AdamW#2": 4}
        assert vars(original).keys() == vars(AdamW(weights())).keys()

    def test_a_class_that_compares_equal_counts_by_instance(self) -> None:
        class Equal(Plain):
            def __eq__(self, other: object) -> bool:
                return isinstance(other, Equal)

            __hash__ = None  # type: ignore[assignment]

        first, second = Equal(weights()), Equal(weights())
        first.step()
        second.step()
        assert step_counts() == {"Equal#1": 1, "Equal#2": 1}


class TestLoops:
    """The global step is the number of iterations, or of the steps of who steps most often."""

    def test_one_optimizer(self) -> None:
        optimizer = sgd()
        for iteration in range(1, 101):
            optimizer.step()
            assert current_step() == iteration
        assert step_counts() == {"SGD#1": 100}

    def test_two_optimizers(self) -> None:
        optimizers = sgd(), AdamW(weights())
        for iteration in range(1, 101):
            for optimizer in optimizers:
                optimizer.step()
                assert current_step() == iteration
        assert step_counts() == {"SGD#1": 100, "AdamW#1": 100}

    @pytest.mark.parametrize("critic_first", [True, False])
    def test_a_critic_steps_five_times_as_often_as_the_generator(self, critic_first: bool) -> None:
        generator, critic = sgd(), AdamW(weights())
        for iteration in range(1, 21):
            if not critic_first:
                generator.step()
            for _ in range(5):
                critic.step()
            if critic_first:
                generator.step()
            assert current_step() in (5 * iteration, 5 * iteration + 1)
        assert current_step() == step_counts()["AdamW#1"] == 100

    def test_one_that_comes_later_begins_a_step_of_its_own(self) -> None:
        early, late = sgd(), AdamW(weights())
        for _ in range(10):
            early.step()
        late.step()
        assert step_counts() == {"SGD#1": 10, "AdamW#1": 11}
        for _ in range(5):
            early.step()
            late.step()
        assert current_step() == 16

    def test_one_that_comes_after_uninstall_and_install_begins_a_step_too(self) -> None:
        early, late = sgd(), sgd()
        early.step()
        pytorch.uninstall()
        pytorch.install(kineto=False)
        late.step()
        assert current_step() == 2

    def test_a_new_optimizer_in_every_epoch(self) -> None:
        for _ in range(5):
            optimizers = sgd(), AdamW(weights())
            for _ in range(10):
                for optimizer in optimizers:
                    optimizer.step()
        assert current_step() == 50

    def test_a_new_optimizer_in_every_iteration(self) -> None:
        for _ in range(20):
            sgd().step()
        assert current_step() == 20

    @pytest.mark.parametrize(
        "forget", [KinetoStepTracker.reset, KinetoStepTracker._step_dict.clear]
    )
    def test_after_a_reset(self, forget: Callable[[], None]) -> None:
        optimizers = sgd(), AdamW(weights())
        for _ in range(10):
            for optimizer in optimizers:
                optimizer.step()
        forget()
        start = current_step()
        for _ in range(10):
            for optimizer in optimizers:
                optimizer.step()
        assert current_step() == start + 10
        assert set(step_counts().values()) == {start + 10}

    def test_installed_in_the_middle_of_training(self) -> None:
        pytorch.uninstall()
        stock = torch.autograd.profiler.KinetoStepTracker
        optimizers = sgd(), AdamW(weights())
        with torch_optimizer.register_optimizer_step_post_hook(torch.profiler._optimizer_post_hook):
            for _ in range(10):
                optimizers[0].step()
            pytorch.install()
            for _ in range(10):
                for optimizer in optimizers:
                    optimizer.step()
            assert current_step() == 20
            assert step_counts() == {"SGD#1": 20, "AdamW#1": 20}
            pytorch.uninstall()
            for _ in range(10):
                optimizers[0].step()
            assert stock.current_step() == 30

    def test_300_optimizers_in_backward(self) -> None:
        """Each steps when its parameter has its gradient, on a thread of autograd's or not."""
        parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(300)]
        optimizers = {parameter: SGD([parameter], lr=0.1) for parameter in parameters}

        def step(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()  # type: ignore[index]
            optimizers[parameter].zero_grad()  # type: ignore[index]

        hooks = [
            parameter.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
            for parameter in parameters
        ]
        for iteration in range(1, 6):
            sum(parameters, torch.zeros(1)).backward()  # type: ignore[no-untyped-call]
            assert current_step() == iteration
        assert step_counts() == {f"SGD#{number}": 5 for number in range(1, 301)}
        # Or the garbage collector would find nothing: the cycle is closed in C++.
        for hook in hooks:
            hook.remove()

    def test_an_optimizer_inside_an_optimizer(self) -> None:
        class Outer(Optimizer):
            def __init__(self, inner: Optimizer) -> None:
                super().__init__(weights(), {})
                self.inner = inner

            def step(self, closure: Any = None) -> Any:
                self.inner.step(closure)

        outer = Outer(sgd())
        for _ in range(10):
            outer.step()
        assert step_counts() == {"SGD#1": 10, "Outer#1": 10}
        assert current_step() == 10

    def test_lbfgs_calls_its_closure_many_times_in_a_step(self) -> None:
        (weight,) = weights()
        optimizer = LBFGS([weight], max_iter=5)
        calls = 0

        def closure() -> torch.Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = ((weight - 5) ** 4).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        for _ in range(3):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        assert calls > 3
        assert step_counts() == {"LBFGS#1": 3}

    @pytest.mark.parametrize(("fused", "counted"), [(False, 2), (True, 3)])
    def test_grad_scaler_skips_a_step(self, fused: bool, counted: int) -> None:
        """Unless the optimizer is fused, which skips by itself, inside its step."""
        (weight,) = weights()
        optimizer = SGD([weight], lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
        assert current_step() == counted

    def test_gradient_accumulation(self) -> None:
        (weight,) = weights()
        optimizer = SGD([weight], lr=0.1)
        for batch in range(1, 41):
            (weight * 2).sum().backward()  # type: ignore[no-untyped-call]
            if batch % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
        assert current_step() == 10

    def test_a_step_that_raises_is_not_counted(self) -> None:
        def fail() -> float:
            raise KeyError

        optimizer = sgd()
        optimizer.step()
        with pytest.raises(KeyError):
            optimizer.step(fail)
        optimizer.step()
        assert current_step() == 2

    def test_an_error_of_kineto_leaves_the_step_that_it_has_counted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> None:
            raise KeyError("Kineto")

        pytorch.install(kineto=True)
        monkeypatch.setattr(torch.autograd.profiler, "_kineto_step", fail)
        optimizer = sgd()
        for step in (1, 2):
            with pytest.raises(KeyError, match="Kineto"):
                optimizer.step()
            assert step_counts() == {"SGD#1": step}

    def test_an_optimizer_leaves_nothing_behind(self) -> None:
        before = len(pytorch._handles), len(pytorch._claims)
        optimizer = sgd()
        optimizer.step()
        assert len(pytorch._handles) == before[0] + 1
        del optimizer
        gc.collect()
        assert (len(pytorch._handles), len(pytorch._claims)) == before


class TestOneStepOneCount:
    """PyTorch may run the hooks twice in one step: once in each ``step`` that it has wrapped."""

    def test_of_a_subclass_that_calls_super(self) -> None:
        class Clipped(Adam):
            def step(self, closure: Any = None) -> Any:
                return super().step(closure)

        optimizers = Clipped(weights()), Adam(weights())
        for _ in range(10):
            for optimizer in optimizers:
                optimizer.step()
        assert step_counts() == {"Clipped#1": 10, "Adam#1": 10}

    def test_of_super_alone(self) -> None:
        class Clipped(Adam):
            def step(self, closure: Any = None) -> Any:
                return super().step(closure)

            def step_unclipped(self) -> None:
                super().step()

        optimizer = Clipped(weights())
        Adam(weights())
        optimizer.step_unclipped()
        optimizer.step()
        assert step_counts() == {"Clipped#1": 2}

    def test_of_a_class_wrapped_twice_by_two_threads(self) -> None:
        class Raced(Plain):
            pass

        optimizer = Raced(weights())
        Raced.step = Optimizer.profile_hook_step(Raced.step)  # type: ignore[method-assign]
        for _ in range(10):
            optimizer.step()
        assert step_counts() == {"Raced#1": 10}
