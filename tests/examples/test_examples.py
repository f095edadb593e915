"""The examples in docs/examples, run as they are: what they print is what their page says."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples"
PAGE = (EXAMPLES / "index.md").read_text()
NEEDS = "{} is not installed; tox -e torch has it"

# Frameworks and compilers warn of their own workings.
pytestmark = pytest.mark.filterwarnings("default")


def printed(name: str) -> list[str]:
    """What the page says that an example prints."""
    _, _, behind = PAGE.partition(f"- [{name}]({name})")
    block = re.search(r"^  ```text\n(.*?)^  ```$", behind, re.MULTILINE | re.DOTALL)
    assert block is not None
    return textwrap.dedent(block[1]).splitlines()


@pytest.fixture
def torch_as_new() -> Iterator[None]:
    """The tracker not in PyTorch, both counts at 0, and PyTorch's number of threads as it was."""
    torch = pytest.importorskip("torch", reason=NEEDS.format("PyTorch"))
    from tests.pytorch.conftest import reset

    reset()
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    reset()


class Runner:
    """Runs examples in this process, which has PyTorch imported already; returns their lines."""

    def __init__(self, output: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._output = output
        self._monkeypatch = monkeypatch

    def __call__(self, name: str, *arguments: str) -> list[str]:
        self._monkeypatch.setattr(sys, "argv", [name, *arguments])
        self._output.readouterr()
        path = EXAMPLES / name
        # As runpy does it, but for the end: the hooks of optimizers in backward are in cycles that
        # the garbage collector does not see through, so the optimizers would live on.
        names = {"__name__": "__main__", "__file__": str(path)}
        try:
            exec(compile(path.read_text(), path, "exec"), names)
        finally:
            names.clear()
        return self._output.readouterr().out.splitlines()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    return Runner(capsys, monkeypatch)


def test_exactly_once(run: Runner) -> None:
    assert run("exactly_once.py") == printed("exactly_once.py")


@pytest.mark.usefixtures("torch_as_new")
def test_hogwild(run: Runner) -> None:
    assert run("hogwild.py") == printed("hogwild.py")


@pytest.mark.usefixtures("torch_as_new")
def test_data_parallel_threads(run: Runner) -> None:
    assert run("data_parallel_threads.py") == printed("data_parallel_threads.py")


@pytest.mark.usefixtures("torch_as_new")
def test_optimizer_in_backward(run: Runner) -> None:
    assert run("optimizer_in_backward.py") == printed("optimizer_in_backward.py")


@pytest.mark.usefixtures("torch_as_new")
@pytest.mark.parametrize(
    ("example", "steps"), [("hogwild.py", 250), ("optimizer_in_backward.py", 20)]
)
def test_pytorch_counts_every_call(
    example: str, steps: int, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same programs with PyTorch's own class and hook, as with Kineto's daemon."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from kineto_step_tracker import pytorch

    monkeypatch.setattr(pytorch, "install", lambda: None)
    # Kineto itself is to hear nothing of it.
    monkeypatch.setattr(torch.autograd.profiler, "_kineto_step", lambda: None)
    hook = register_optimizer_step_post_hook(torch.profiler._optimizer_post_hook)
    try:
        run(example)
    finally:
        hook.remove()
    # Not exactly: with threads it loses some.
    assert steps * 3 < torch.autograd.profiler.KinetoStepTracker.current_step() <= 1000


@pytest.mark.usefixtures("torch_as_new")
def test_compiled(run: Runner) -> None:
    # With inductor, its default, tests/pytorch/test_compile.py has the same.
    assert run("compiled.py", "eager") == printed("compiled.py")


@pytest.mark.usefixtures("torch_as_new")
def test_lightning_counts_double(run: Runner) -> None:
    pytest.importorskip("pytorch_lightning", reason=NEEDS.format("Lightning"))
    assert run("lightning_gan.py") == printed("lightning_gan.py")


@pytest.mark.usefixtures("torch_as_new")
def test_accelerate(run: Runner) -> None:
    pytest.importorskip("accelerate", reason=NEEDS.format("accelerate"))
    assert run("accelerate_accumulation.py") == printed("accelerate_accumulation.py")


@pytest.mark.usefixtures("torch_as_new")
def test_transformers(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason=NEEDS.format("transformers"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run("transformers_trainer.py") == printed("transformers_trainer.py")


def test_ddp() -> None:
    pytest.importorskip("torch", reason=NEEDS.format("PyTorch"))
    # On its own: the processes that it spawns import it as the main module.
    done = subprocess.run(
        [sys.executable, EXAMPLES / "ddp.py"],
        env=os.environ | {"KINETO_USE_DAEMON": ""},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=200,
    )
    assert done.stdout.splitlines() == printed("ddp.py")


def test_every_example_is_on_the_page_and_begins_with_what_it_shows() -> None:
    scripts = (EXAMPLES / "scripts.md").read_text()
    tests = Path(__file__).read_text()
    for example in EXAMPLES.glob("*.py"):
        assert printed(example.name)
        assert f"{{literalinclude}} {example.name}\n" in scripts
        source = example.read_text()
        assert ast.get_docstring(ast.parse(source))
        assert len(source.splitlines()) <= 65
        assert f'"{example.name}"' in tests, "no test runs it"
