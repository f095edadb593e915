"""``fleet``: the table, marks, exit status, JSON, watching, a terminal, and what goes wrong."""

from __future__ import annotations

import gc
import io
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import pytest
from rich.console import Console

from kineto_step_tracker.cli import fleet as cli_fleet
from kineto_step_tracker.cli.app import app

from .running import command, on_terminal, plain

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

WHY = "PyTorch is not installed; tox -e torch has it"
PREFIX = "kineto_step_tracker"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch asks a name server about every address, and it may be that none answers.
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")


class Clock:
    """Stands in for `time` in the command and below it. Whoever sleeps lets the next thing happen.

    When nothing more is to happen, Ctrl-C does.
    """

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.then: list[Callable[[], object]] = []

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if not self.then:
            raise KeyboardInterrupt
        self.then.pop(0)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    pytest.importorskip("torch", reason=WHY)
    clock = Clock()
    monkeypatch.setattr(cli_fleet, "time", clock)
    monkeypatch.setattr("kineto_step_tracker.fleet.board.time", clock)
    monkeypatch.setattr("kineto_step_tracker.fleet.observer.time", clock)
    return clock


Steps = list[int | None]
Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path, clock: Clock) -> Start:
    """Start a job in a file: its ranks publish the first steps at once, and the others by and by,
    each time that the command sleeps. Return the store's address."""

    def start(*looks: Steps, prefix: str = PREFIX) -> str:
        from torch._C._distributed_c10d import FileStore

        from kineto_step_tracker.fleet.board import Board

        board = Board(FileStore(str(tmp_path / "store")), len(looks[0]), prefix)
        board.agree(1)

        def publish(steps: Steps) -> None:
            for rank, step in enumerate(steps):
                if step is not None:
                    board.publish(rank, step, "somebody")

        publish(looks[0])
        clock.then = [lambda steps=steps: publish(steps) for steps in looks[1:]]  # type: ignore[misc]
        return f"file:{tmp_path}/store"

    return start


# One is ahead, one behind, one falls silent, one was never seen.
FOUR: list[Steps] = [[100, 90, 95, None], [1_200, 1_110]]
# Two in the middle were never seen.
THOUSANDS: list[Steps] = [[None if rank in (700, 800) else 5_000 for rank in range(1_200)], []]


class Done(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """What is in the tables' rows, of cells that are not empty."""
        lines = re.findall(r"^ +(\d+(?:  .*)?)$", self.out, re.MULTILINE)
        return [re.split(r" {2,}", line.strip()) for line in lines]


Fleet = Callable[..., Done]


@pytest.fixture
def fleet(capsys: pytest.CaptureFixture[str]) -> Fleet:
    def run(store: str, *arguments: str) -> Done:
        with pytest.raises(SystemExit) as stopped:
            app(["fleet", "--store", store, *arguments])
        out, err = capsys.readouterr()
        code = stopped.value.code
        if isinstance(code, str):  # as Python itself does at the end of a process
            code, err = 1, f"{err}{code}\n"
        assert isinstance(code, int)
        return Done(code, out.replace("\u00a0", " "), err)

    return run


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Let the command run on a terminal of 80 by 24; return what that shows."""
    file = io.StringIO()
    screen = Console(file=file, force_terminal=True, width=80, height=24, color_system="standard")
    monkeypatch.setattr(cli_fleet, "console", lambda: screen)
    return lambda: file.getvalue().replace("\u00a0", " ")


def test_a_table_has_each_rank_and_a_line_names_those_that_are_marked(
    start: Start, fleet: Fleet
) -> None:
    done = fleet(start(*FOUR), "--interval", "11", "--behind", "89")
    assert (done.status, done.err) == (1, "")
    first, heads, *_, last = done.out.splitlines()
    assert first == "Step 1 200, skew 1 105, 4 ranks; prefix kineto_step_tracker"
    assert heads.split() == ["rank", "step", "steps/s", "age", "behind"]
    assert done.rows == [
        ["0", "1 200", "100.0", "0.0 s", "0"],
        ["1", "1 110", "92.7", "0.0 s", "90", "behind"],
        ["2", "95", "-", "11.0 s", "1 105", "silent, behind"],
        ["3", "-", "-", "-", "-", "never seen"],
    ]
    assert last == "3 of 4 ranks marked; never seen: 3; silent: 2; behind: 1-2"
    assert "\x1b" not in done.out
    assert [line for line in done.out.splitlines() if line != line.rstrip()] == []


def test_where_no_rank_is_marked(start: Start, fleet: Fleet) -> None:
    done = fleet(start([4, 3], [8, 3]))
    assert (done.status, done.err) == (0, "")
    assert done.rows == [["0", "8", "2.0", "0.0 s", "0"], ["1", "3", "0.0", "0.0 s", "5"]]
    assert done.out.splitlines()[-1] == "No rank is marked."


@pytest.mark.parametrize("form", ["", "--json"])
@pytest.mark.parametrize(
    ("steps", "arguments", "status"),
    [
        ([9, 4], "", 0),
        ([9, 4], "--behind 5", 0),
        ([9, 4], "--behind 4", 1),
        ([9, 9], "--behind 0", 0),
        ([9, None], "", 1),
        ([9, 9], "--interval 10", 0),
        ([9, 9], "--interval 10.1", 1),
        ([9, 9], "--interval 10.1 --silent 10.2", 0),
        ([9, 9], "--interval 1 --silent 0.9", 1),
    ],
)
def test_the_exit_status_is_1_for_a_rank_that_is_silent_never_seen_or_too_far_behind(
    steps: Steps, arguments: str, form: str, status: int, start: Start, fleet: Fleet
) -> None:
    assert fleet(start(steps, []), *arguments.split(), *form.split()).status == status


def test_json_is_one_object_on_one_line_and_nothing_else(
    start: Start, fleet: Fleet, shown: Callable[[], str]
) -> None:
    """Also on a terminal."""
    done = fleet(start(*FOUR), "--json", "--interval", "11", "--behind", "89")
    assert (done.status, done.err, done.out.count("\n"), shown()) == (1, "", 1, "")
    ranks = [
        (0, 1_200, pytest.approx(100), 0, 0, []),
        (1, 1_110, pytest.approx(1_020 / 11), 0, 90, ["behind"]),
        (2, 95, None, 11, 1_105, ["silent", "behind"]),
        (3, None, None, None, None, ["never seen"]),
    ]
    names = ("rank", "step", "rate", "age", "behind", "marks")
    assert json.loads(done.out) == {
        "prefix": PREFIX,
        "step": 1_200,
        "skew": 1_105,
        "ranks": [dict(zip(names, rank, strict=True)) for rank in ranks],
    }


def test_watching_in_json_is_a_line_a_look_until_ctrl_c(start: Start, fleet: Fleet) -> None:
    """A silent rank has no steps a second, though it had before."""
    done = fleet(start([0], [6], [], [], [12]), "--watch", "--json", "--silent", "3")
    assert (done.status, done.err) == (130, "")
    looks = [json.loads(line)["ranks"][0] for line in done.out.splitlines()]
    assert [(look["step"], look["rate"], look["marks"]) for look in looks] == [
        (6, 3, []),
        (6, 3, []),
        (6, None, ["silent"]),
        (12, 1, []),
    ]


def test_watching_prints_a_table_a_look_until_ctrl_c(start: Start, fleet: Fleet) -> None:
    done = fleet(start(*FOUR, [1_300, 1_290]), "--watch", "--interval", "1")
    assert (done.status, done.err) == (130, "")
    heads = [line for line in done.out.splitlines() if line.startswith("Step ")]
    assert [head.split(",")[0] for head in heads] == ["Step 1 200", "Step 1 300"]
    assert [row[:2] for row in done.rows if row[0] == "1"] == [["1", "1 110"], ["1", "1 290"]]


@pytest.mark.parametrize("watch", [[], ["--watch"]])
def test_a_marked_rank_is_red_on_a_terminal_and_all_that_fit_are_in_order(
    watch: list[str], start: Start, fleet: Fleet, shown: Callable[[], str]
) -> None:
    fleet(start(*FOUR), "--interval", "1", "--behind", "100", *watch)
    last = shown()[shown().rindex("Step ") :]
    red = [plain(line).split()[0] for line in last.splitlines() if "\x1b[31m" in line]
    assert red == ["2", "3", "2"]  # two ranks and the summary
    text = plain(last)
    assert re.findall(r"^ +([0-3])  ", text, re.MULTILINE) == ["0", "1", "2", "3"]
    assert "2 of 4 ranks marked; never seen: 3; behind: 2" in text
    assert "not shown" not in text


@pytest.mark.parametrize(
    ("interval", "left_out", "summary"),
    [
        ("1", "1 181 ranks not shown", "2 of 1 200 ranks marked; never seen: 700, 800"),
        (
            "11",
            "1 181 ranks not shown, 1 181 of them marked",
            "1 200 of 1 200 ranks marked; never seen: 700, 800; silent: 0-699, 701-799, 801-…",
        ),
    ],
)
def test_many_ranks_are_watched_on_a_terminal_with_the_marked_ones_first(
    interval: str,
    left_out: str,
    summary: str,
    start: Start,
    fleet: Fleet,
    shown: Callable[[], str],
) -> None:
    assert fleet(start(*THOUSANDS), "--watch", "--interval", interval).status == 130
    text = plain(shown())
    lines = [line.strip() for line in text[text.rindex("Step ") :].splitlines()]
    # Were a line wrapped, the table would not fit.
    assert len(lines) < 24
    ranks = [line.split()[0] for line in lines[2:8]]
    assert ranks == (["700", "800", "0", "1", "2", "3"] if interval == "1" else list("012345"))
    assert left_out in lines
    assert summary in lines


def test_many_ranks_are_all_printed_without_a_terminal(start: Start, fleet: Fleet) -> None:
    assert [int(row[0]) for row in fleet(start(*THOUSANDS)).rows] == list(range(1_200))


def error(done: Done) -> str:
    """What it says is wrong, in its one line, behind the store's address."""
    assert (done.status, done.out) == (2, "")
    found = re.fullmatch(r"kineto-step-tracker: (?:tcp://[^ ]+|file:[^ ]+): (.+)\n", done.err)
    assert found is not None, done.err
    return found[1]


def test_a_file_that_goes_away_while_it_is_watched(
    start: Start, fleet: Fleet, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kineto_step_tracker.fleet.connection.PATIENCE", 0.1)
    address = start(*FOUR)
    clock.then.append(Path(address.removeprefix("file:")).unlink)
    done = fleet(address, "--watch")
    assert done.out.startswith("Step 1 200, ")
    assert error(done._replace(out="")).startswith("the store went away: No such file")


@pytest.mark.usefixtures("clock")
def test_a_store_that_is_not_there(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert error(fleet(f"tcp://127.0.0.1:{port}")) == "Connection refused"
    assert error(fleet(f"file:{tmp_path}/none")) == "No such file or directory"
    assert error(fleet(f"file:{tmp_path}")) == "Is a directory"

    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    # To root, as which these tests may run, nothing is forbidden.
    monkeypatch.setattr(Path, "open", refuse)
    assert error(fleet(f"file:{tmp_path}/secret")) == "Permission denied"


def test_of_several_jobs_one_is_chosen_by_its_prefix(start: Start, fleet: Fleet) -> None:
    start([1], prefix="one")
    address = start([2], [], prefix="two")
    assert error(fleet(address)) == (
        "there are several jobs in this store, choose one by its prefix: one, two"
    )
    assert error(fleet(address, "--prefix", "two", "--world-size", "5")) == (
        "the job's world size is 1, not 5"
    )
    done = fleet(address, "--prefix", "two", "--world-size", "1")
    assert (done.status, done.out.splitlines()[0]) == (0, "Step 2, skew 0, 1 rank; prefix two")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world-size", "0"], "'--world-size': '0' is not a whole number from 1 up."),
        (["--behind", "-1"], "'--behind': '-1' is not a whole number from 0 up."),
        (["--silent", "0"], "'--silent': '0' is not a number above 0 and at most 86400."),
        (["--interval", "nan"], "'--interval': 'nan' is not a number above 0 and at most 86400."),
        ([], "'--store': 'none': a store is given as tcp://HOST:PORT or file:PATH."),
    ],
)
def test_a_bad_option_is_refused(arguments: list[str], message: str, fleet: Fleet) -> None:
    if not arguments:
        pytest.importorskip("torch", reason=WHY)
    done = fleet("none", *arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.endswith(f"Invalid value for {message}\n")


def test_a_store_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        app(["fleet"])
    assert "Missing option '--store'" in capsys.readouterr().err


def test_help_says_what_it_does_and_when_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        app(["fleet", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for option in ("store", "world-size", "prefix", "behind", "silent", "interval", "watch"):
        assert f" --{option} " in text
    assert "The exit status is 1 if some rank is silent, was never seen, or is further" in text


def test_without_pytorch_it_says_in_one_line_what_to_install(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = fleet("file:none")
    assert (done.status, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.endswith("; pip install 'kineto-step-tracker[torch]'\n")
    assert done.err.count("pip install") == 1


def test_output_that_cannot_be_written_is_not_taken_for_the_store(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(cli_fleet, "_show_in_json", refuse)
    with pytest.raises((BrokenPipeError, SystemExit)) as stopped:
        app(["fleet", "--store", start(*FOUR), "--json"])
    assert "kineto-step-tracker: file:" not in str(stopped.value)


@contextmanager
def training() -> Iterator[tuple[TCPStore, SimpleNamespace]]:
    """A job of two ranks of which one publishes, as in a program; its step may be set."""
    pytest.importorskip("torch", reason=WHY)
    from torch._C._distributed_c10d import TCPStore

    from kineto_step_tracker.fleet import FleetStep

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    step = SimpleNamespace(now=7)
    step.current_step = lambda: step.now
    with FleetStep(store, tracker=step, rank=0, world_size=2, interval=0.1):
        yield store, step


def test_a_store_that_goes_away_is_told_in_one_line_and_not_by_pytorch_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL")
    with training() as (store, _):
        address = f"tcp://127.0.0.1:{store.port}"
        stores = [store]
        del store

    def end() -> None:
        # Its first look leaves an empty key for the rank that was never seen.
        while not stores[0].check([f"{PREFIX}/rank/1"]):
            time.sleep(0.01)
        stores.clear()
        gc.collect()

    thread = threading.Thread(target=end)
    thread.start()
    done = command("fleet", "--store", address, "--watch", "--interval", "0.1")
    thread.join()
    assert done.returncode == 2
    assert done.stderr.startswith(f"kineto-step-tracker: {address}: the store went away: ")
    assert done.stderr.count("\n") == 1


def test_on_a_terminal_the_table_follows_until_ctrl_c() -> None:
    with (
        training() as (store, step),
        on_terminal(
            *("fleet", "--store", f"tcp://127.0.0.1:{store.port}"),
            *("--watch", "--interval", "0.2"),
        ) as terminal,
    ):
        terminal.wait_for("Step 7, skew 0, 2 ranks; prefix kineto_step_tracker")
        step.now = 9
        terminal.wait_for("Step 9, ")
        terminal.interrupt()
        assert terminal.finish() == 130
    assert plain(terminal.shown).endswith("interrupted\n")
    assert "Traceback" not in terminal.shown
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")
