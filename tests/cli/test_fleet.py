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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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

    from kineto_step_tracker.fleet.board import Board

WHY = "PyTorch is not installed; tox -e torch has it"
PREFIX = "kineto_step_tracker"
NO_STORE = "what listens there does not answer as a store of torch.distributed"


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


class Job:
    """Ranks that publish in a file when they are told to."""

    def __init__(self, file: Path, clock: Clock, world_size: int, prefix: str = PREFIX) -> None:
        from torch._C._distributed_c10d import FileStore

        from kineto_step_tracker.fleet.board import Board

        self.address = f"file:{file}"
        self._clock = clock
        self._board: Board = Board(FileStore(str(file)), world_size, prefix)
        self._board.agree(1)

    def publish(self, *steps: int | None) -> None:
        for rank, step in enumerate(steps):
            if step is not None:
                self._board.publish(rank, step, "somebody")

    def publish_next(self, *steps: int | None) -> None:
        """Publish it when the command sleeps."""
        self._clock.then.append(lambda: self.publish(*steps))


@pytest.fixture
def job(tmp_path: Path, clock: Clock) -> Job:
    """Four ranks: one ahead, one behind, one that falls silent, one that was never seen."""
    job = Job(tmp_path / "store", clock, 4)
    job.publish(100, 90, 95, None)
    job.publish_next(1_200, 1_110)
    return job


class Done(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """What is in the tables' rows, of cells that are not empty."""
        lines = re.findall(r"^ +(\d+(?:  .*)?)$", self.out, re.MULTILINE)
        return [re.split(r" {2,}", line.strip()) for line in lines]


class _Fleet:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, store: Job | str, *arguments: str) -> Done:
        address = store if isinstance(store, str) else store.address
        with pytest.raises(SystemExit) as stopped:
            app(["fleet", "--store", address, *arguments])
        out, err = self._capsys.readouterr()
        code = stopped.value.code
        if isinstance(code, str):  # as Python itself does at the end of a process
            code, err = 1, f"{err}{code}\n"
        assert isinstance(code, int)
        return Done(code, out.replace("\u00a0", " "), err)

    def on_terminal(self, store: Job, *arguments: str) -> Done:
        """Run it on a terminal of 80 by 24."""
        shown = io.StringIO()
        screen = Console(
            file=shown, force_terminal=True, width=80, height=24, color_system="standard"
        )
        self._monkeypatch.setattr(cli_fleet, "console", lambda: screen)
        done = self(store, *arguments)
        assert done.out == ""
        return done._replace(out=shown.getvalue().replace("\u00a0", " "))


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> _Fleet:
    return _Fleet(monkeypatch, capsys)


def test_a_table_has_each_rank_and_a_line_names_those_that_are_marked(
    job: Job, fleet: _Fleet
) -> None:
    done = fleet(job, "--interval", "11", "--behind", "89")
    assert (done.status, done.err) == (1, "")
    first, heads, *_, last = done.out.splitlines()
    assert first == "Step 1 200, skew 1 105, 4 ranks; prefix kineto_step_tracker"
    assert heads.split() == ["rank", "step", "steps/s", "age", "behind"]
    assert done.rows == [
        ["0", "1 200", "100.0", "0.0 s", "0"],
        ["1", "1 110", "92.7", "0.0 s", "90", "behind"],
        ["2", "95", "11.0 s", "1 105", "silent, behind"],
        ["3", "never seen"],
    ]
    assert last == "3 of 4 ranks marked; never seen: 3; silent: 2; behind: 1-2"
    assert "\x1b" not in done.out
    assert [line for line in done.out.splitlines() if line != line.rstrip()] == []


def test_where_no_rank_is_marked(tmp_path: Path, clock: Clock, fleet: _Fleet) -> None:
    job = Job(tmp_path / "store", clock, 2)
    job.publish(4, 3)
    job.publish_next(8, 3)
    done = fleet(job)
    assert (done.status, done.err) == (0, "")
    assert done.rows == [["0", "8", "2.0", "0.0 s", "0"], ["1", "3", "0.0", "0.0 s", "5"]]
    assert done.out.splitlines()[-1] == "No rank is marked."


@pytest.mark.parametrize(
    ("steps", "arguments", "status"),
    [
        ((9, 4), (), 0),
        ((9, 4), ("--behind", "5"), 0),
        ((9, 4), ("--behind", "4"), 1),
        ((9, 9), ("--behind", "0"), 0),
        ((9, None), (), 1),
        ((9, 9), ("--interval", "10"), 0),
        ((9, 9), ("--interval", "10.1"), 1),
        ((9, 9), ("--interval", "10.1", "--silent", "10.2"), 0),
        ((9, 9), ("--interval", "1", "--silent", "0.9"), 1),
    ],
)
def test_the_exit_status_is_1_for_a_rank_that_is_silent_never_seen_or_too_far_behind(
    steps: tuple[int | None, ...],
    arguments: tuple[str, ...],
    status: int,
    tmp_path: Path,
    clock: Clock,
    fleet: _Fleet,
) -> None:
    job = Job(tmp_path / "store", clock, 2)
    job.publish(*steps)
    job.publish_next()
    assert fleet(job, *arguments).status == status


def test_json_is_one_object_on_one_line_and_nothing_else(job: Job, fleet: _Fleet) -> None:
    done = fleet(job, "--json", "--interval", "11", "--behind", "89")
    assert (done.status, done.err, done.out.count("\n")) == (1, "", 1)
    found = json.loads(done.out)
    ranks = found.pop("ranks")
    assert found == {"prefix": PREFIX, "step": 1_200, "skew": 1_105}
    assert ranks[0] == {
        "rank": 0,
        "step": 1_200,
        "rate": pytest.approx(100),
        "age": 0,
        "behind": 0,
        "marks": [],
    }
    assert (ranks[1]["marks"], ranks[2]["marks"]) == (["behind"], ["silent", "behind"])
    nothing = {"step": None, "rate": None, "age": None, "behind": None}
    assert ranks[3] == {"rank": 3, **nothing, "marks": ["never seen"]}


def test_json_on_a_terminal_is_nothing_else_either(
    job: Job, fleet: _Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(cli_fleet, "console", lambda: screen)
    done = fleet(job, "--json", "--watch")
    assert (json.loads(done.out)["step"], done.err) == (1_200, "")
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue() == ""


def test_json_where_no_rank_is_marked(tmp_path: Path, clock: Clock, fleet: _Fleet) -> None:
    job = Job(tmp_path / "store", clock, 1)
    job.publish(4)
    job.publish_next(8)
    done = fleet(job, "--json")
    assert (done.status, json.loads(done.out)["ranks"][0]["rate"]) == (0, 2)


def test_a_silent_rank_has_no_steps_a_second_though_it_had_before(
    tmp_path: Path, clock: Clock, fleet: _Fleet
) -> None:
    job = Job(tmp_path / "store", clock, 1)
    job.publish(0)
    job.publish_next(6)
    job.publish_next()
    job.publish_next()
    job.publish_next(12)
    done = fleet(job, "--watch", "--json", "--silent", "3")
    looks = [json.loads(line)["ranks"][0] for line in done.out.splitlines()]
    assert [(look["rate"], look["marks"]) for look in looks] == [
        (3, []),
        (3, []),
        (None, ["silent"]),
        (1, []),
    ]


def test_watching_prints_a_table_a_look_until_ctrl_c(job: Job, fleet: _Fleet) -> None:
    job.publish_next(1_300, 1_290)
    done = fleet(job, "--watch", "--interval", "1")
    assert (done.status, done.err) == (130, "")
    heads = [line for line in done.out.splitlines() if line.startswith("Step ")]
    assert [head.split(",")[0] for head in heads] == ["Step 1 200", "Step 1 300"]
    assert [row[:2] for row in done.rows if row[0] == "1"] == [["1", "1 110"], ["1", "1 290"]]


def test_watching_in_json_is_a_line_a_look(job: Job, fleet: _Fleet) -> None:
    job.publish_next(1_300, 1_290)
    done = fleet(job, "--watch", "--json", "--interval", "1")
    assert (done.status, done.err) == (130, "")
    assert [json.loads(line)["step"] for line in done.out.splitlines()] == [1_200, 1_300]


def test_a_marked_rank_is_red_on_a_terminal(job: Job, fleet: _Fleet) -> None:
    done = fleet.on_terminal(job, "--interval", "1", "--behind", "100")
    red = [plain(line).split()[0] for line in done.out.splitlines() if "\x1b[31m" in line]
    assert red == ["2", "3", "2"]  # two ranks and the summary: 2 of 4 ranks marked
    assert "2 of 4 ranks marked; never seen: 3; behind: 2" in plain(done.out)


@pytest.fixture
def thousands(tmp_path: Path, clock: Clock) -> Job:
    """1 200 ranks, of which two in the middle were never seen."""
    job = Job(tmp_path / "store", clock, 1_200)
    steps = [None if rank in (700, 800) else 5_000 for rank in range(1_200)]
    job.publish(*steps)
    job.publish_next()
    return job


def test_many_ranks_are_watched_on_a_terminal_with_the_marked_ones_first(
    thousands: Job, fleet: _Fleet
) -> None:
    done = fleet.on_terminal(thousands, "--watch")
    assert done.status == 130
    last = done.out[done.out.rindex("Step ") :]
    table = [line.split() for line in plain(last).splitlines()]
    assert len(table) < 24
    assert [row[0] for row in table[2:8]] == ["700", "800", "0", "1", "2", "3"]
    assert "1 181 ranks not shown" in plain(done.out)
    assert "2 of 1 200 ranks marked; never seen: 700, 800" in plain(done.out)


def test_more_marked_ranks_than_fit_are_counted(thousands: Job, fleet: _Fleet) -> None:
    done = fleet.on_terminal(thousands, "--watch", "--interval", "11")
    text = plain(done.out)
    assert "1 181 ranks not shown, 1 181 of them marked" in text
    # It is cut: were it wrapped, the table would not fit.
    assert len(text[text.rindex("Step ") :].splitlines()) < 24
    summary = next(line for line in text.splitlines() if "ranks marked;" in line)
    assert summary.startswith("1 200 of 1 200 ranks marked; never seen: 700, 800; silent: 0-699, 7")


def test_many_ranks_are_all_printed_without_a_terminal(thousands: Job, fleet: _Fleet) -> None:
    done = fleet(thousands)
    assert [int(row[0]) for row in done.rows] == list(range(1_200))


def test_all_that_fit_on_a_terminal_are_shown_in_order(job: Job, fleet: _Fleet) -> None:
    text = plain(fleet.on_terminal(job, "--watch", "--interval", "1", "--behind", "89").out)
    assert re.findall(r"^ +([0-3])  ", text, re.MULTILINE)[:4] == ["0", "1", "2", "3"]
    assert "not shown" not in text


def error(done: Done) -> str:
    """What it says is wrong, in its one line, behind the store's address."""
    assert (done.status, done.out) == (1, "")
    found = re.fullmatch(r"kineto-step-tracker: (?:tcp://[^ ]+|file:[^ ]+): (.+)\n", done.err)
    assert found is not None, done.err
    return found[1]


def test_a_store_that_goes_away_while_it_is_watched(fleet: _Fleet, clock: Clock) -> None:
    from torch._C._distributed_c10d import TCPStore

    from kineto_step_tracker.fleet.board import Board

    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    address = f"tcp://127.0.0.1:{stores[0].port}"
    board = Board(stores[0], 1, PREFIX)
    board.agree(1)
    board.publish(0, 7, "somebody")

    def end() -> None:
        stores.clear()
        gc.collect()

    clock.then = [lambda: None, end]
    done = fleet(address, "--watch")
    assert done.status == 1
    assert done.out.startswith("Step 7, skew 0, 1 rank; prefix kineto_step_tracker\n")
    assert done.err.startswith(f"kineto-step-tracker: {address}: the store went away: ")
    assert done.err.count("\n") == 1


def test_a_file_that_goes_away_while_it_is_watched(
    job: Job, fleet: _Fleet, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kineto_step_tracker.fleet.connection.PATIENCE", 0.1)
    clock.then.append(Path(job.address.removeprefix("file:")).unlink)
    done = fleet(job, "--watch")
    assert done.status == 1
    assert done.err.startswith(f"kineto-step-tracker: {job.address}: the store went away: No such")
    assert done.err.count("\n") == 1


def test_nobody_listens_there(clock: Clock, fleet: _Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert error(fleet(f"tcp://127.0.0.1:{port}")) == "Connection refused"


class _Page(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def http_server() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def mute_listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_what_listens_there_is_no_store(
    clock: Clock, fleet: _Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kineto_step_tracker.fleet.connection._CONNECTING", 0.2)
    with http_server() as port:
        assert error(fleet(f"tcp://127.0.0.1:{port}")) == NO_STORE


def test_what_listens_there_does_not_answer(
    clock: Clock, fleet: _Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kineto_step_tracker.fleet.connection.PATIENCE", 0.2)
    with mute_listener() as port:
        reason = f"127.0.0.1:{port} has not answered in 0.2 s"
        assert error(fleet(f"tcp://127.0.0.1:{port}")) == reason


def test_a_file_that_cannot_be_opened(
    tmp_path: Path, clock: Clock, fleet: _Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert error(fleet(f"file:{tmp_path}/none")) == "No such file or directory"
    assert not (tmp_path / "none").exists()
    assert error(fleet(f"file:{tmp_path}")) == "Is a directory"

    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    # To root, as which these tests may run, nothing is forbidden.
    monkeypatch.setattr(Path, "open", refuse)
    assert error(fleet(f"file:{tmp_path}/secret")) == "Permission denied"


@pytest.mark.parametrize(
    "content",
    [b"hello, world\n" * 9, b"\0" * 64, b"hi", bytes(range(256))],
    ids=["text", "zeros", "short", "bytes"],
)
def test_a_file_that_is_no_store(
    content: bytes, tmp_path: Path, clock: Clock, fleet: _Fleet
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert error(fleet(f"file:{file}")) == "the file is no store of torch.distributed"
    assert file.read_bytes() == content


def test_another_world_size_is_named(job: Job, fleet: _Fleet) -> None:
    assert error(fleet(job, "--world-size", "5")) == "the job's world size is 4, not 5"
    assert fleet(job, "--world-size", "4").out.startswith("Step 1 200, ")


def test_nothing_is_published(tmp_path: Path, clock: Clock, fleet: _Fleet) -> None:
    (tmp_path / "store").touch()
    expected = "no rank has published anything in this store"
    assert error(fleet(f"file:{tmp_path}/store")) == expected


def test_of_several_jobs_one_is_chosen_by_its_prefix(
    tmp_path: Path, clock: Clock, fleet: _Fleet
) -> None:
    for prefix, step in ("one", 1), ("two", 2):
        job = Job(tmp_path / "store", clock, 1, prefix)
        job.publish(step)
    assert error(fleet(job)) == (
        "there are several jobs in this store, choose one by its prefix: one, two"
    )
    assert error(fleet(job, "--prefix", "three")) == (
        "no rank has published anything under the prefix 'three' in this store; there is one, two"
    )
    job.publish_next()
    done = fleet(job, "--prefix", "two")
    assert (done.status, done.out.splitlines()[0]) == (0, "Step 2, skew 0, 1 rank; prefix two")


@pytest.mark.parametrize(
    "address", ["", "tcp://", "tcp://host", "tcp://host:0", "tcp://host:65536", "host:1", "file"]
)
def test_a_store_that_is_neither_an_address_nor_a_file(
    address: str, clock: Clock, fleet: _Fleet
) -> None:
    done = fleet(address)
    assert (done.status, done.out) == (2, "")
    assert done.err.endswith(
        f"Error: Invalid value for '--store': {address!r}: "
        "a store is given as tcp://HOST:PORT or file:PATH.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world-size", "0"], "'--world-size': '0' is not a whole number from 1 up."),
        (["--behind", "-1"], "'--behind': '-1' is not a whole number from 0 up."),
        (["--silent", "0"], "'--silent': '0' is not a number above 0 and at most 86400."),
        (["--interval", "nan"], "'--interval': 'nan' is not a number above 0 and at most 86400."),
    ],
)
def test_a_bad_option_is_refused(arguments: list[str], message: str, fleet: _Fleet) -> None:
    done = fleet("file:none", *arguments)
    assert (done.status, done.out) == (2, "")
    assert f"Invalid value for {message}" in done.err


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
    fleet: _Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = fleet("file:none")
    assert (done.status, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.endswith("; pip install 'kineto-step-tracker[torch]'\n")
    assert done.err.count("pip install") == 1


def test_output_that_cannot_be_written_is_not_taken_for_the_store(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(cli_fleet, "_show_in_json", refuse)
    with pytest.raises((BrokenPipeError, SystemExit)) as stopped:
        app(["fleet", "--store", job.address, "--json"])
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
    assert done.returncode == 1
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
