"""PyTorch's names, class, hook and counts: taken over, forwarded, and given back."""

from __future__ import annotations

import contextlib
import ctypes
import doctest
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

import torch
import torch.profiler
from torch.autograd import profiler
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from kineto_step_tracker import KinetoStepTracker, drop_in, pytorch
from tests.pytorch.training import in_pytorch, pytorch_state, sgd

STOCK = profiler.KinetoStepTracker


@pytest.fixture
def stock_hook() -> Iterator[int]:
    """PyTorch's hook between two others, as when KINETO_USE_DAEMON was set at its import."""
    others = [lambda *_: None, lambda *_: None]
    with contextlib.ExitStack() as stack:
        handles = [
            stack.enter_context(torch_optimizer.register_optimizer_step_post_hook(hook))
            for hook in (others[0], torch.profiler._optimizer_post_hook, others[1])
        ]
        yield handles[1].id


class TestNames:
    def test_they_are_ours_until_uninstall(self) -> None:
        before = pytorch_state()
        assert not pytorch.is_installed()

        pytorch.install()

        assert pytorch.is_installed()
        assert in_pytorch() == (KinetoStepTracker, KinetoStepTracker)

        pytorch.uninstall()

        assert not pytorch.is_installed()
        assert pytorch_state() == before

    def test_uninstall_without_install_does_nothing(self) -> None:
        before = pytorch_state()
        pytorch.uninstall()
        assert pytorch_state() == before


class TestEarlierReference:
    def test_the_methods_are_forwarded(self) -> None:
        pytorch.install()
        STOCK.init_step_count("mine")
        assert STOCK.increment_step("mine") == 1
        assert STOCK.current_step() == KinetoStepTracker.current_step() == 1
        assert KinetoStepTracker.step_counts() == {"mine": 1}
        assert STOCK.erase_step_count("mine")
        assert KinetoStepTracker.step_counts() == {}

    def test_the_private_attributes_are_read_from_ours(self) -> None:
        pytorch.install()
        KinetoStepTracker.increment_step("mine")
        assert STOCK._current_step == 1
        assert STOCK._step_dict == {"mine": 1}

    def test_the_private_attributes_are_written_to_ours(self) -> None:
        pytorch.install()
        STOCK._current_step = 7
        STOCK._step_dict = {"mine": 5}
        assert (KinetoStepTracker.current_step(), KinetoStepTracker.step_counts()) == (
            7,
            {"mine": 5},
        )
        STOCK._step_dict["yours"] = 6
        STOCK._step_dict.update(theirs=7)
        assert KinetoStepTracker.step_counts() == {"mine": 5, "yours": 6, "theirs": 7}
        STOCK._step_dict.clear()
        assert KinetoStepTracker.step_counts() == {}

    def test_a_monkeypatched_attribute_is_restored(self) -> None:
        pytorch.install()
        STOCK._current_step = 3
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(STOCK, "_current_step", 50)
            assert KinetoStepTracker.current_step() == 50
        assert KinetoStepTracker.current_step() == 3

    def test_the_class_counts_by_itself_again_after_uninstall(self) -> None:
        pytorch.install()
        STOCK.increment_step("mine")
        pytorch.uninstall()

        STOCK.increment_step("mine")
        STOCK._current_step += 10

        assert (STOCK._current_step, STOCK._step_dict) == (12, {"mine": 2})
        assert (KinetoStepTracker.current_step(), KinetoStepTracker.step_counts()) == (1, {})

    def test_the_class_owns_a_reference_to_its_type(self) -> None:
        """Or the type would be freed under it when the interpreter ends."""
        metaclass = type(KinetoStepTracker)
        before = sys.getrefcount(metaclass)
        pytorch.install()
        assert sys.getrefcount(metaclass) == before + 1

    def test_it_survives_many_installs_and_the_garbage_collector(self) -> None:
        for step in range(1, 100):
            with pytorch.installed(kineto=False):
                assert STOCK.increment_step("mine") == STOCK._current_step == step
            assert (type(STOCK), STOCK._current_step) == (type, step)


class TestCounts:
    def test_pytorchs_go_on_in_ours_without_a_callback(self, kineto: list[int]) -> None:
        STOCK._step_dict.update(ProfilerStep=40, Optimizer1Step=38)
        STOCK._current_step = 40

        pytorch.install(kineto=True)

        assert KinetoStepTracker.current_step() == 40
        assert KinetoStepTracker.step_counts() == {"ProfilerStep": 40, "Optimizer1Step": 38}
        assert kineto == []
        assert KinetoStepTracker.increment_step("ProfilerStep") == 41
        assert len(kineto) == 1

    def test_of_two_the_larger_one_goes_on(self) -> None:
        STOCK._step_dict.update(both=3, theirs=5)
        STOCK._current_step = 5
        KinetoStepTracker._step_dict.update(both=4, ours=9)

        pytorch.install()

        assert KinetoStepTracker.step_counts() == {"both": 4, "theirs": 5, "ours": 9}
        assert KinetoStepTracker.current_step() == 9

    def test_they_come_back_in_the_same_dict(self, kineto: list[int]) -> None:
        counts = STOCK._step_dict
        STOCK.increment_step("erased")
        STOCK.increment_step("kept")
        pytorch.install()
        STOCK.erase_step_count("erased")
        for _ in range(10):
            STOCK.increment_step("kept")
        called = len(kineto)

        pytorch.uninstall()

        assert STOCK._step_dict is counts
        assert counts == {"kept": 12}
        assert (STOCK._current_step, STOCK.increment_step("kept")) == (12, 13)
        assert len(kineto) == called + 1

    def test_a_requester_is_on_one_side_only(self) -> None:
        with pytorch.installed():
            STOCK.increment_step("mine")
        assert KinetoStepTracker.step_counts() == {}
        STOCK.erase_step_count("mine")
        with pytorch.installed():
            assert KinetoStepTracker.step_counts() == {}

    def test_a_reset_between_two_installs_is_one_of_the_requesters_only(self) -> None:
        with pytorch.installed():
            STOCK.increment_step("mine")
        STOCK._step_dict.clear()
        STOCK._current_step = 0
        with pytorch.installed():
            # The tracker's own global step never falls.
            assert (STOCK.current_step(), STOCK._step_dict) == (1, {})


class TestNesting:
    def test_installing_twice_is_installing_once(self) -> None:
        before = pytorch_state()
        pytorch.install()
        inside = pytorch_state()
        pytorch.install()
        assert pytorch_state() == inside
        pytorch.uninstall()
        assert pytorch_state() == before

    def test_the_outermost_with_uninstalls(self) -> None:
        with pytorch.installed():
            with pytorch.installed():
                assert pytorch.is_installed()
            assert pytorch.is_installed()
        assert not pytorch.is_installed()

    def test_with_leaves_installed_what_install_installed(self) -> None:
        pytorch.install()
        with pytorch.installed():
            pass
        assert pytorch.is_installed()

    def test_install_within_with_outlasts_it(self) -> None:
        with pytorch.installed():
            pytorch.install()
        assert pytorch.is_installed()

    def test_overlapping_withs_are_undone_by_the_last(self) -> None:
        first, second = pytorch.installed(kineto=True), pytorch.installed()
        with contextlib.ExitStack() as outer:
            with contextlib.ExitStack() as inner:
                inner.enter_context(first)
                outer.enter_context(second)
            assert pytorch.is_installed()
            assert drop_in.step_kineto is False
        assert not pytorch.is_installed()

    def test_uninstall_within_with_is_final(self) -> None:
        before = pytorch_state()
        with pytorch.installed():
            pytorch.uninstall()
            assert pytorch_state() == before
        assert pytorch_state() == before

    def test_with_uninstalls_after_an_exception(self) -> None:
        with pytest.raises(KeyError), pytorch.installed():
            raise KeyError
        assert not pytorch.is_installed()

    def test_it_decorates_a_function(self) -> None:
        @pytorch.installed()
        def train() -> bool:
            return pytorch.is_installed()

        assert (train(), train(), pytorch.is_installed()) == (True, True, False)


class TestKineto:
    @pytest.mark.parametrize(
        ("variable", "kineto_argument", "called"),
        [
            (None, None, False),
            ("", None, False),
            ("1", None, True),
            ("1", False, False),
            (None, True, True),
        ],
    )
    def test_a_rise_calls_it_as_asked(
        self,
        variable: str | None,
        kineto_argument: bool | None,
        called: bool,
        kineto: list[int],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.delenv("KINETO_USE_DAEMON", raising=False)
        if variable is not None:
            monkeypatch.setenv("KINETO_USE_DAEMON", variable)
        pytorch.install(kineto_argument)
        first, second = sgd(), sgd()
        for _ in range(5):
            first.step()
            second.step()
        assert KinetoStepTracker.current_step() == 5
        assert len(kineto) == (5 if called else 0)

    def test_installing_again_changes_it_only_if_told_to(self) -> None:
        pytorch.install(kineto=True)
        pytorch.install()
        assert drop_in.step_kineto is True
        with pytorch.installed(kineto=True):
            pytorch.install(kineto=False)
            assert drop_in.step_kineto is False

    def test_the_innermost_with_that_says_something_decides(self) -> None:
        outside = drop_in.step_kineto
        with pytorch.installed(kineto=False):
            with pytorch.installed(kineto=True):
                with pytorch.installed():
                    assert drop_in.step_kineto is True
                pytorch.install(kineto=False)
                assert drop_in.step_kineto is False
            assert drop_in.step_kineto is False
        pytorch.uninstall()
        assert drop_in.step_kineto is outside


class TestHook:
    def test_pytorchs_is_replaced_in_its_place_and_put_back(self, stock_hook: int) -> None:
        before = list(torch_optimizer._global_optimizer_post_hooks.items())

        pytorch.install()
        inside = list(torch_optimizer._global_optimizer_post_hooks.items())
        sgd().step()
        counted = KinetoStepTracker.step_counts()
        pytorch.uninstall()

        assert [number for number, _ in inside] == [number for number, _ in before]
        assert [a == b for a, b in zip(inside, before, strict=True)] == [True, False, True]
        assert "Optimizer" not in counted
        assert list(torch_optimizer._global_optimizer_post_hooks.items()) == before

    def test_pytorchs_raises_the_step_at_once_when_it_is_back(self, stock_hook: int) -> None:
        optimizer = sgd()
        optimizer.step()
        with pytorch.installed():
            for _ in range(10):
                optimizer.step()
            assert KinetoStepTracker.current_step() == 11

        optimizer.step()

        assert STOCK.current_step() == 12
        assert STOCK._step_dict == {"SGD#1": 11, "Optimizer": 12}

    def test_the_count_of_pytorchs_stays_behind(self, stock_hook: int) -> None:
        optimizers = sgd(), sgd()
        for number in range(1, 4):
            with pytorch.installed():
                # What it counted is in the global step.
                assert KinetoStepTracker.current_step() == STOCK.current_step() == 4 * (number - 1)
                for _ in range(3):
                    for optimizer in optimizers:
                        optimizer.step()
                assert KinetoStepTracker.current_step() == 4 * number - 1
                assert "Optimizer" not in KinetoStepTracker.step_counts()
            optimizers[0].step()
            assert STOCK.current_step() == STOCK._step_dict["Optimizer"] == 4 * number

    def test_the_count_of_pytorchs_may_be_all_that_has_the_step(self, stock_hook: int) -> None:
        STOCK._step_dict.update(Optimizer=9, mine=3)
        with pytorch.installed():
            assert KinetoStepTracker.current_step() == 9
            assert KinetoStepTracker.step_counts() == {"mine": 3}

    def test_without_pytorchs_its_name_is_anyones(self) -> None:
        STOCK._step_dict["Optimizer"] = 9
        with pytorch.installed():
            assert KinetoStepTracker.step_counts() == {"Optimizer": 9}

    def test_without_pytorchs_ours_is_added_and_removed(self) -> None:
        hooks = torch_optimizer._global_optimizer_post_hooks
        before = list(hooks.items())
        with pytorch.installed():
            assert len(hooks) == len(before) + 1
        assert list(hooks.items()) == before


class TestUnfitPyTorch:
    @pytest.mark.parametrize(
        ("owner", "path", "name"),
        [
            (profiler, "torch.autograd.profiler", "KinetoStepTracker"),
            (profiler, "torch.autograd.profiler", "_kineto_step"),
            (STOCK, "torch.autograd.profiler.KinetoStepTracker", "increment_step"),
            (STOCK, "torch.autograd.profiler.KinetoStepTracker", "_step_dict"),
            (STOCK, "torch.autograd.profiler.KinetoStepTracker", "_current_step"),
            (torch.profiler, "torch.profiler", "KinetoStepTracker"),
            (torch.profiler, "torch.profiler", "_optimizer_post_hook"),
            (torch_optimizer, "torch.optim.optimizer", "_global_optimizer_post_hooks"),
            (Optimizer, "torch.optim.optimizer.Optimizer", "profile_hook_step"),
            (torch.compiler, "torch.compiler", "is_dynamo_compiling"),
            (torch.library, "torch.library", "custom_op"),
        ],
    )
    def test_what_is_missing_is_named_and_nothing_changed(
        self, owner: Any, path: str, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = pytorch_state()
        with monkeypatch.context() as patch:
            patch.delattr(owner, name)
            left = dict(vars(owner))
            with pytest.raises(RuntimeError, match="unchanged") as refused:
                pytorch.install()
            assert f"{path}.{name}" in str(refused.value)
            assert torch.__version__ in str(refused.value)
            assert dict(vars(owner)) == left
            assert not pytorch.is_installed()
        assert pytorch_state() == before

    def test_a_class_of_another_kind_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Kind(type):
            pass

        class Tracker(STOCK, metaclass=Kind):
            pass

        monkeypatch.setattr(profiler, "KinetoStepTracker", Tracker)
        with pytest.raises(RuntimeError, match="KinetoStepTracker as a plain class"):
            pytorch.install()

    @pytest.mark.parametrize("function", ["_replace_hook", "_set_metaclass"])
    def test_a_failure_on_the_way_is_rolled_back(
        self, function: str, stock_hook: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise MemoryError

        STOCK._step_dict.update(Optimizer=3, ProfilerStep=5)
        STOCK._current_step = 5
        before = pytorch_state()
        with monkeypatch.context() as patch:
            patch.setattr(pytorch, function, fail)
            with pytest.raises(MemoryError):
                pytorch.install(kineto=False)
        assert pytorch_state() == before
        assert not pytorch.is_installed()

        # And it is not installed by halves either.
        with pytorch.installed():
            sgd().step()
        assert not pytorch.is_installed()

    def test_another_interpreters_objects_are_left_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = pytorch_state()
        with monkeypatch.context() as patch:
            # As if the head ended elsewhere.
            patch.setattr(ctypes, "sizeof", lambda _: 0)
            with pytest.raises(RuntimeError, match="not laid out as CPython does"):
                pytorch.install()
        assert pytorch_state() == before

    def test_without_pytorch_the_import_says_what_to_install(self) -> None:
        script = """
            import sys
            sys.modules["torch"] = None
            try:
                import kineto_step_tracker.pytorch
            except ImportError as error:
                print(error)
        """
        assert run(script).stdout.strip().endswith("pip install 'kineto-step-tracker[torch]'")


def test_examples_in_the_docstrings() -> None:
    assert doctest.testmod(pytorch).failed == 0


def test_who_first_counts_during_uninstall_is_not_counted_twice() -> None:
    """Under the name of PyTorch's own hook, whose count begins anew in that moment."""
    script = """
        import torch
        from torch.autograd import profiler
        from kineto_step_tracker import KinetoStepTracker, pytorch

        weight = torch.nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        optimizer = torch.optim.SGD([weight])
        pytorch.install()
        for _ in range(100):
            optimizer.step()
        hand_over = pytorch._Installation._hand_over

        def with_somebody_between(self, handed):
            counts = hand_over(self, handed)
            if not handed:
                KinetoStepTracker.increment_step("Optimizer")
            return counts

        pytorch._Installation._hand_over = with_somebody_between
        pytorch.uninstall()
        assert profiler.KinetoStepTracker.current_step() == 101
        print("done")
    """
    assert run(script, KINETO_USE_DAEMON="1").stdout.strip() == "done"


def test_with_the_daemon_switched_on_before_the_import() -> None:
    """KINETO_USE_DAEMON is read when PyTorch is imported, hence a process of its own."""
    script = """
        import torch
        from torch.autograd import profiler
        from torch.optim import optimizer as torch_optimizer
        from torch.profiler import profile
        from kineto_step_tracker import KinetoStepTracker, pytorch

        stock, hooks = profiler.KinetoStepTracker, torch_optimizer._global_optimizer_post_hooks
        kineto, calls = profiler._kineto_step, []
        profiler._kineto_step = lambda: calls.append(kineto())
        weight = torch.nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        optimizers = torch.optim.SGD([weight]), torch.optim.AdamW([weight])
        before = list(hooks.items())
        assert [hook for _, hook in before] == [torch.profiler._optimizer_post_hook]

        def train(iterations):
            with profile() as profiling:
                for _ in range(iterations):
                    for optimizer in optimizers:
                        optimizer.step()
                    profiling.step()
                return dict(profiler.KinetoStepTracker._step_dict)

        pytorch.install()
        counts = train(100)
        assert counts == {"ProfilerStep": 100, "SGD#1": 100, "AdamW#1": 100}, counts
        assert KinetoStepTracker.current_step() == len(calls) == 100
        pytorch.uninstall()
        assert list(hooks.items()) == before
        assert stock._current_step == 100
        train(10)
        # PyTorch's own count of the same: each of the two optimizers is a step.
        assert (stock._current_step, len(calls)) == (120, 120), (stock._current_step, len(calls))
        print("done")
    """
    process = run(script, KINETO_USE_DAEMON="1")
    assert process.stdout.strip() == "done"
    # Optimizers that are alive at exit are erased, or not, without a word.
    assert "Traceback" not in process.stderr
    assert "Exception ignored" not in process.stderr


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, **variables},
    )
    assert process.returncode == 0, process.stderr
    return process


@pytest.mark.parametrize("bad", ["yes", 1, object])
def test_kineto_is_a_bool_or_none(bad: Any) -> None:
    with pytest.raises(TypeError, match="kineto must be a bool or None, not "):
        pytorch.install(bad)
    assert not pytorch.is_installed()


def test_a_forgotten_installed_that_is_collected_while_another_begins() -> None:
    """Its end, from the garbage collector, must not take out what the other found installed."""

    class Holder:
        asked = 0

        def __hash__(self) -> int:
            self.asked += 1
            if self.asked == 2:
                del forgotten[:]
            return 1

    statement = pytorch.installed()
    statement.__enter__()
    forgotten = [statement]
    del statement
    with pytorch._lock:
        pytorch._hold(Holder(), None)
    assert pytorch.is_installed()
