"""A run: its parts, its progress and its report, and that PyTorch is left as it was."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kineto_step_tracker import KinetoStepTracker, backend, bench
from kineto_step_tracker.bench import contenders, footprint, steps, threads
from kineto_step_tracker.bench.contenders import Contender, Hook
from kineto_step_tracker.bench.report import Key, Question

Watch = Callable[[float], object]
PARTS = {
    "import and memory": Question.IMPORT,
    "steps on one thread": Question.RISE,
    "steps on several threads": Question.SHARED,
    "PyTorch's optimizers": Question.HOOK,
}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Let the parts measure nothing; how much they were to do is noted here."""
    plans: list[tuple[Any, ...]] = []

    def pretending(question: Question) -> Callable[..., dict[Key, list[float]]]:
        def measure(*plan: Any) -> dict[Key, list[float]]:
            *how_much, watch = plan
            plans.append((question, *how_much))
            watch(0.5)
            watch(1)
            return {Key(question, Contender.NAME, 1): [1.0]}

        return measure

    for module, question in (
        (footprint, Question.IMPORT),
        (steps, Question.RISE),
        (threads, Question.SHARED),
    ):
        monkeypatch.setattr(module, "measure", pretending(question))
    monkeypatch.setattr(bench, "_measure_optimizers", pretending(Question.HOOK))
    found = dict.fromkeys(["torch"], SimpleNamespace())
    monkeypatch.setattr(importlib.util, "find_spec", found.get)
    for module in (bench, contenders):
        monkeypatch.setattr(module, "trouble_with", lambda package: "")
    return plans


@pytest.fixture
def no_torch(plans: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize("quick", [True, False])
def test_the_progress_names_each_part_and_rises_to_all(plans: object, quick: bool) -> None:
    told: list[bench.Progress] = []
    bench.run(quick, told.append)
    assert list(dict.fromkeys(progress.doing for progress in told)) == ["imports", *PARTS, "done"]
    shares = [progress.share for progress in told]
    assert (shares[0], shares[-1]) == (0, 1)
    assert all(one <= other for one, other in pairwise(shares))
    for doing in PARTS:
        begin, half, end = [progress.share for progress in told if progress.doing == doing]
        assert begin < half < end
        assert half - begin == pytest.approx(end - half)
    # Where one part has ended the next begins.
    starts = [next(p.share for p in told if p.doing == doing) for doing in [*PARTS, "done"]]
    ends = [[p.share for p in told if p.doing == doing][-1] for doing in PARTS]
    assert ends == pytest.approx(starts[1:])


def test_a_quick_run_takes_less_of_everything(plans: list[tuple[Any, ...]]) -> None:
    bench.run(quick=True)
    quick = plans.copy()
    plans.clear()
    bench.run()
    assert [question for question, *_ in quick] == [question for question, *_ in plans]
    for (_, *few), (_, *many) in zip(quick, plans, strict=True):
        for less, more in zip(few, many, strict=True):
            assert set(less) < set(more) if isinstance(less, tuple) else less < more


def test_the_report_has_all_values_and_says_of_what_they_are(
    plans: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10.0, 14.5])
    monkeypatch.setattr(bench, "perf_counter", lambda: next(times))
    report = bench.run(quick=True)
    assert report.values == {Key(question, "by name", 1): [1.0] for question in PARTS.values()}
    assert report.seconds == 4.5
    assert report.quick is True
    assert report.backend == backend
    assert report.environment == bench.environment()
    gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    assert report.free_threaded == (not gil())


@pytest.mark.parametrize("enabled", [True, False])
def test_whether_threads_run_at_once_is_seen_when_they_have_run(
    plans: object, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    """Importing a package, as the parts do, may have switched the GIL on."""
    ran = threads.measure

    def measure(*plan: Any) -> dict[Key, list[float]]:
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: enabled, raising=False)
        return ran(*plan)

    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: not enabled, raising=False)
    monkeypatch.setattr(threads, "measure", measure)
    report = bench.run(quick=True)
    assert report.free_threaded is not enabled
    gil = "with the GIL" if enabled else "without the GIL"
    assert report.environment["Python"] == f"{platform.python_version()}, {gil}"


def test_without_pytorch_its_optimizers_are_no_part(
    no_torch: None, plans: list[tuple[Any, ...]]
) -> None:
    told: list[bench.Progress] = []
    bench.run(True, told.append)
    *parts, _ = PARTS
    assert list(dict.fromkeys(progress.doing for progress in told)) == ["imports", *parts, "done"]
    assert Question.HOOK not in {question for question, *_ in plans}
    assert told[-1].share == 1


def test_all_other_parts_run_without_pytorch_and_other_packages() -> None:
    program = """
from importlib.machinery import PathFinder
find_spec = PathFinder.find_spec
missing = "torch", "cereggii", "matplotlib", "rich", "typer"
PathFinder.find_spec = lambda name, *more: None if name in missing else find_spec(name, *more)
from kineto_step_tracker import bench
from kineto_step_tracker.bench import steps, threads
(footprint, *_) = parts = bench._parts(quick=True)
print(*(part.doing for part in parts), sep="; ")
print(*sorted({key.contender for key in steps.measure(1, id)}), sep="; ")
print(*sorted({key.contender for key in threads.measure((1,), 1, 0.001, id)}), sep="; ")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    parts, alone, together = (set(line.split("; ")) for line in done.stdout.splitlines())
    assert parts == set(PARTS) - {"PyTorch's optimizers"}
    with_packages = {Contender.PYTORCH, Contender.CEREGGII}
    if backend == "portable" or importlib.util.find_spec("atomics") is None:
        with_packages.add(Contender.PORTABLE)
    assert alone == set(Contender) - with_packages
    assert together == alone - {Contender.LOOK_UP, Contender.PORTABLE}


@pytest.mark.parametrize("quick", [1, None, "yes"])
def test_a_quick_that_is_no_bool_is_refused(quick: Any, plans: list[tuple[Any, ...]]) -> None:
    with pytest.raises(TypeError, match=f"^quick must be a bool, not {quick!r}$"):
        bench.run(quick)
    assert plans == []


@pytest.mark.parametrize("watch", [None, "print"])
def test_a_watch_that_cannot_be_called_is_refused(watch: Any, plans: list[tuple[Any, ...]]) -> None:
    with pytest.raises(TypeError, match=f"^watch must be callable, not {watch!r}$"):
        bench.run(watch=watch)
    assert plans == []


def test_what_the_watcher_raises_ends_the_run(plans: list[tuple[Any, ...]]) -> None:
    def watch(progress: bench.Progress) -> None:
        if progress.doing == "steps on one thread":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        bench.run(True, watch)
    assert [question for question, *_ in plans] == [Question.IMPORT]


def test_the_environment_names_what_the_figures_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13.0", "atomics": "1.0.3"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    environment = bench.environment()
    assert list(environment) == ["Python", "backend", "machine", "torch", "cereggii", "atomics"]
    assert environment["Python"].startswith(f"{platform.python_version()}, with")
    assert environment["backend"] == backend
    assert environment["machine"].startswith(f"{platform.system()}, ")
    assert environment["machine"].endswith(f", {os.cpu_count()} cores")
    assert [environment[name] for name in ("torch", "cereggii", "atomics")] == [
        "2.13.0",
        "not installed",
        "1.0.3",
    ]


@pytest.mark.parametrize(
    ("cpuinfo", "processor"),
    [
        ("processor : 0\nmodel name\t: Some CPU: 3 GHz\n\nmodel name : Other\n", "Some CPU: 3 GHz"),
        ("Hardware : board\n", platform.machine()),
        (None, platform.machine()),
    ],
)
def test_the_processor_is_named_as_well_as_the_system_can(
    cpuinfo: str | None, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_text(path: Path, encoding: str) -> str:
        assert path == Path("/proc/cpuinfo")
        if cpuinfo is None:
            raise FileNotFoundError(path)
        return cpuinfo

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read_text)
        found = bench._processor()
    assert found == processor


class InUse:
    """A PyTorch in use: another's hook, two threads, and counts from earlier steps."""

    def __init__(self) -> None:
        self.torch: Any = pytest.importorskip("torch", reason="measures PyTorch's optimizers")
        self.profiler: Any = importlib.import_module("torch.autograd.profiler")
        self.ours: Any = importlib.import_module("kineto_step_tracker.pytorch")
        self.bench: Any = importlib.import_module("kineto_step_tracker.bench.optimizers")
        self.hooks: dict[int, Any] = self.bench._hooks
        self.stock: Any = self.profiler.KinetoStepTracker

    def parts(self) -> list[object]:
        return [
            list(self.hooks.items()),
            self.torch.get_num_threads(),
            self.profiler.KinetoStepTracker,
            self.torch.profiler.KinetoStepTracker,
            vars(self.stock)["increment_step"],
            self.profiler._kineto_step,
            self.ours.is_installed(),
        ]

    def counts(self) -> list[object]:
        return [
            (KinetoStepTracker.current_step(), KinetoStepTracker.step_counts()),
            (self.stock._current_step, dict(self.stock._step_dict)),
        ]


@pytest.fixture
def in_use(process_wide: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[InUse]:
    pytorch = InUse()
    monkeypatch.setattr(pytorch.bench, "_RUNS", 1)
    hooks, threads = pytorch.hooks.copy(), pytorch.torch.get_num_threads()
    step, counts = pytorch.stock._current_step, pytorch.stock._step_dict.copy()
    pytorch.bench.torch_optimizer.register_optimizer_step_post_hook(lambda *arguments: None)
    pytorch.torch.set_num_threads(2)
    pytorch.stock.increment_step("earlier")
    yield pytorch
    pytorch.hooks.clear()
    pytorch.hooks.update(hooks)
    pytorch.torch.set_num_threads(threads)
    pytorch.stock._current_step, pytorch.stock._step_dict = step, counts


def test_pytorch_is_as_it_was(in_use: InUse) -> None:
    before = in_use.parts()
    in_use.bench.measure(1, id)
    assert in_use.parts() == before


def test_ours_is_at_step_0_and_pytorchs_counts_are_as_they_were(in_use: InUse) -> None:
    before = in_use.counts()
    assert before[0] == (0, {})
    in_use.bench.measure(1, id)
    assert in_use.counts() == before


@pytest.mark.parametrize("hook", Hook)
def test_pytorch_is_as_it_was_if_an_iteration_raises(
    hook: Hook, in_use: InUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = {
        Hook.NONE: [],
        Hook.EMPTY: [in_use.bench._empty_hook],
        Hook.OURS: [in_use.ours._count],
        Hook.STOCK: [in_use.torch.profiler._optimizer_post_hook],
    }[hook]

    def iterate() -> None:
        if list(in_use.hooks.values()) == registered:
            raise ZeroDivisionError

    monkeypatch.setattr(in_use.bench, "_one_optimizer", lambda: nullcontext(iterate))
    before = in_use.parts()
    with pytest.raises(ZeroDivisionError):
        in_use.bench.measure(1, id)
    assert in_use.parts() == before


def test_the_share_of_the_optimizers_that_is_done_rises_to_one(in_use: InUse) -> None:
    shares: list[float] = []
    in_use.bench.measure(1, shares.append)
    assert shares == sorted(set(shares))
    assert shares[0] > 0
    assert shares[-1] == 1


def test_every_hook_is_measured_on_one_optimizer_and_on_many(in_use: InUse) -> None:
    found = in_use.bench.measure(2, id)
    wholes = {
        Key(question, hook, number)
        for question, number in ((Question.OPTIMIZER, 1), (Question.BACKWARD, 300))
        for hook in Hook
    }
    hooks = {Key(Question.HOOK, hook, n) for hook in (Hook.OURS, Hook.STOCK) for n in (1, 300)}
    assert set(found) == wholes | hooks
    assert {len(values) for values in found.values()} == {2}


def test_nothing_of_an_iteration_is_timed_but_its_hooks(
    in_use: InUse, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0

    def spend(*seconds: int) -> None:
        nonlocal now
        now += sum(seconds)

    def iterate() -> None:
        for _ in range(2):
            spend(100)
            (hook,) = in_use.hooks.values()
            hook(1, 2)

    monkeypatch.setattr(in_use.bench, "perf_counter", lambda: now)
    in_use.hooks.clear()
    in_use.hooks[7] = spend
    assert in_use.bench.time_in_the_hook(iterate, 5) == 2 * (1 + 2)
    assert in_use.hooks == {7: spend}
