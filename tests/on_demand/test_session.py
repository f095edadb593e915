"""A request from the first ask to the last file: what each process comes to, and what is left."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kineto_step_tracker import on_demand
from kineto_step_tracker.on_demand import (
    DaemonRunningError,
    Recording,
    Report,
    Request,
    State,
    Trace,
    read,
    session,
)

from .training import PATIENCE, ask, message, training

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Kineto takes requests on Linux only"
)

FIVE = Request(iterations=5)
NAME = re.compile(r"kineto_\d{8}-\d{6}_(\d+)\.json")
# Above any that Linux gives.
NOBODY = 2**22 + 1
SETTLED = 6.1
AGES = 1e6

FLOOD = """
import os, socket, sys
parent = os.getppid()
named, nameless = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
named.bind("")
# Who waits for room in the queue stands in line; who tries again and again comes before him.
nameless.setblocking(False)
while os.getppid() == parent:
    for garbage in (b"", b"x", bytes(40), b"\\xff" * 64, os.urandom(900), bytes(70_000)):
        for sender in (named, nameless):
            try:
                sender.sendto(garbage, sys.argv[1])
            except OSError:
                pass
"""


class Clock:
    """The session's time, which stands still but for what a test adds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._begun = time.monotonic()

    def monotonic(self) -> float:
        assert time.monotonic() - self._begun < PATIENCE, "what the test waits for has not come"
        return self.now

    def strftime(self, form: str) -> str:
        return time.strftime(form, time.gmtime(1_000_000_000 + self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(session, "time", clock)
    return clock


class Asking:
    """`on_demand.trace` with the sockets in one folder and the files in another below it."""

    def __init__(self, sockets: Path) -> None:
        self.sockets = sockets
        self.output = sockets / "traces"

    def __call__(self, request: Request = FIVE, **more: Any) -> Report:
        chosen: dict[str, Any] = {
            "output": self.output,
            "socket_folder": self.sockets,
            "timeout": PATIENCE,
        }
        report = on_demand.trace(request, **chosen | more)
        assert not self.holds_the_name()
        return report

    def holds_the_name(self) -> bool:
        return (self.sockets / "dynolog").exists()

    def files(self) -> list[str]:
        return sorted(file.name for file in self.output.iterdir())


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(tmp_path)


def states(report: Report) -> list[State]:
    return [recording.state for recording in report.recordings]


def once(reached: Callable[[Report], bool], act: Callable[[], object]) -> Callable[[Report], None]:
    """A watch that acts the first time that a report is so."""
    done: list[bool] = []

    def watch(report: Report) -> None:
        if not done and reached(report):
            done.append(True)
            act()

    return watch


def each_of(*watches: Callable[[Report], None]) -> Callable[[Report], None]:
    def watch(report: Report) -> None:
        for each in watches:
            each(report)

    return watch


def jump(clock: Clock, to: float) -> Callable[[], None]:
    def act() -> None:
        clock.now = to

    return act


def all_are(state: State, number: int = 1) -> Callable[[Report], bool]:
    return lambda report: states(report) == [state] * number


def any_is(state: State) -> Callable[[Report], bool]:
    return lambda report: state in states(report)


def steps_of(report: Report) -> dict[int, tuple[int | None, int | None]]:
    return {recording.pid: (recording.first, recording.last) for recording in report.recordings}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def client() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        # To an abstract name that Linux chooses.
        sender.bind("")
        yield sender


def test_a_whole_trace(asking: Asking) -> None:
    with training(asking.sockets) as one:
        report = asking(pids=[one.pid])
    assert report.is_whole
    assert report.refused == {}
    (recording,) = report.recordings
    file = recording.file
    assert file is not None
    assert file.parent == asking.output
    match = NAME.fullmatch(file.name)
    assert match is not None
    assert match[1] == str(one.pid)
    assert recording == Recording(
        pid=one.pid,
        asked="the next 5 steps",
        state=State.WHOLE,
        file=file,
        size=file.stat().st_size,
        iterations=5,
        first=11,
        last=15,
        optimizers={"Optimizer.step#SGD.step": 5},
    )
    assert asking.files() == [file.name]


def test_who_watches_sees_how_far_it_is(asking: Asking) -> None:
    seen: list[Report] = []
    with training(asking.sockets, "--ignore", "2", "--recording", "3") as one:
        asking(pids=[one.pid], watch=seen.append)
    way = [State.SILENT, State.TOLD, State.RECORDING, State.WRITTEN, State.WHOLE]
    found = list(dict.fromkeys(report.recordings[0].state for report in seen))
    # It may have asked already when the first report comes.
    assert found in (way, way[1:])
    assert [report.seconds for report in seen] == sorted(report.seconds for report in seen)
    assert not any(report.is_whole for report in seen[:-1])
    assert seen[-1].is_whole


def test_with_nobody_there_is_no_recording_and_no_trace(asking: Asking) -> None:
    report = asking(timeout=0.2)
    assert report.recordings == ()
    assert not report.is_whole
    assert report.seconds >= 0.2
    assert asking.files() == []


def test_the_socket_is_where_the_environment_says(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETO_IPC_SOCKET_DIR", str(asking.sockets))
    with training(asking.sockets) as one:
        assert asking(pids=[one.pid], socket_folder=None).is_whole


def test_an_output_folder_is_made_and_may_be_relative(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(asking.sockets)
    with training(asking.sockets) as one:
        report = asking(pids=[one.pid], output="one/two")
        told = one.told()
    file = report.recordings[0].file
    assert file is not None
    assert file.parent == asking.sockets / "one" / "two"
    assert {Path(lines["ACTIVITIES_LOG_FILE"]).parent for lines in told} == {file.parent}


def test_a_process_is_told_what_was_requested(asking: Asking) -> None:
    request = Request(
        iterations=7,
        start=100,
        warmup=3,
        activities=["cpu_op"],
        config={"PROFILE_WITH_STACK": "true"},
    )
    with training(asking.sockets) as one:
        report = asking(request, pids=[one.pid])
        told = one.told()
    assert report.recordings[0].asked == "steps 100 to 106"
    assert steps_of(report) == {one.pid: (100, 106)}
    assert report.is_whole
    told[0].pop("ACTIVITIES_LOG_FILE")
    assert told[0] == {
        "PROFILE_START_ITERATION": "98",
        "PROFILE_START_ITERATION_ROUNDUP": "1",
        "ACTIVITIES_WARMUP_ITERATIONS": "3",
        "ACTIVITIES_ITERATIONS": "7",
        "ACTIVITIES_DURATION_MSECS": "0",
        "ACTIVITY_TYPES": "cpu_op,user_annotation",
        "PROFILE_WITH_STACK": "true",
    }


def test_a_process_that_forgets_is_told_again_until_it_records(
    asking: Asking, clock: Clock
) -> None:
    def half_a_second_later(report: Report) -> None:
        clock.now += 0.5

    with training(asking.sockets, "--ignore", "4") as one:
        report = asking(pids=[one.pid], watch=half_a_second_later)
        told = [Path(lines["ACTIVITIES_LOG_FILE"]).name for lines in one.told()]
    assert report.is_whole
    # Four that it forgets, the one that it takes, and those while that is pending.
    assert len(told) >= 5
    assert all(re.fullmatch(r"kineto_20010909-\d{6}\.json", name) for name in told)
    assert len(set(told)) > 1
    file = report.recordings[0].file
    assert file is not None
    assert file.name == told[4].replace(".json", f"_{one.pid}.json")


def test_a_file_has_another_name_only_in_another_second(asking: Asking, clock: Clock) -> None:
    later = once(any_is(State.TOLD), jump(clock, 3))
    with training(asking.sockets, "--ignore", "6") as one:
        report = asking(pids=[one.pid], watch=later)
        told = [Path(lines["ACTIVITIES_LOG_FILE"]).name for lines in one.told()]
    assert report.is_whole
    assert list(dict.fromkeys(told)) == [
        "kineto_20010909-014640.json",
        "kineto_20010909-014643.json",
    ]
    assert told.count("kineto_20010909-014640.json") == 1


def test_the_file_may_have_any_of_the_names_that_it_was_told(asking: Asking, clock: Clock) -> None:
    # As libkineto, it ignores what it is told while a request is pending: it takes the first.
    later = once(any_is(State.TOLD), jump(clock, 3))
    with training(asking.sockets, "--pending", "5") as one:
        report = asking(pids=[one.pid], watch=later)
        told = one.told()
    assert len({lines["ACTIVITIES_LOG_FILE"] for lines in told}) == 2
    assert report.is_whole
    assert asking.files() == [f"kineto_20010909-014640_{one.pid}.json"]


def test_nobody_is_told_again_who_records_or_has_recorded(asking: Asking, clock: Clock) -> None:
    with training(asking.sockets, "--pending", "0", "--recording", "4") as one:
        over = once(all_are(State.WRITTEN), jump(clock, SETTLED))
        assert asking(watch=over).is_whole
        answers = one.answers()
    assert [bool(answer) for answer in answers] == [True] + [False] * (len(answers) - 1)
    assert len(answers) >= 5


def test_several_processes_deliver_each_a_file(asking: Asking) -> None:
    with (
        training(asking.sockets) as one,
        training(asking.sockets, "--ignore", "3", "--steps", "700") as two,
        training(asking.sockets, "--recording", "5", "--steps", "50") as three,
    ):
        report = asking(pids=[one.pid, two.pid, three.pid])
    assert report.is_whole
    assert steps_of(report) == {one.pid: (11, 15), two.pid: (701, 705), three.pid: (51, 55)}
    assert len(asking.files()) == 3


def test_who_asks_within_6_seconds_of_the_first_belongs_to_it(asking: Asking, clock: Clock) -> None:
    with ExitStack() as stack:
        started = [stack.enter_context(training(asking.sockets))]

        def start_another() -> None:
            clock.now = 5.9
            started.append(stack.enter_context(training(asking.sockets, "--steps", "20")))

        another = once(all_are(State.WRITTEN), start_another)
        over = once(all_are(State.WRITTEN, 2), jump(clock, SETTLED))
        report = asking(watch=each_of(another, over))
    assert report.is_whole
    assert report.seconds == SETTLED
    assert steps_of(report) == {started[0].pid: (11, 15), started[1].pid: (21, 25)}


def test_who_records_longer_than_6_seconds_is_waited_for(asking: Asking, clock: Clock) -> None:
    later = once(all_are(State.RECORDING), jump(clock, 60))
    with training(asking.sockets, "--recording", "5"):
        assert asking(watch=later).is_whole


def test_a_start_that_was_passed_is_wrong(asking: Asking) -> None:
    with training(asking.sockets, "--steps", "2000") as one:
        report = asking(Request(iterations=5, start=1000), pids=[one.pid])
    (recording,) = report.recordings
    assert recording.state is State.WRONG
    assert (recording.first, recording.last, recording.iterations) == (2001, 2005, 5)
    assert recording.problem == (
        "recorded other steps than from 1000 on: it had passed that when it was told, or its count "
        "is not Kineto's plus one, since it was set by hand or began with a later step"
    )
    assert not report.is_whole


def test_a_start_that_comes_later_than_asked_is_wrong(asking: Asking) -> None:
    with training(asking.sockets, "--late", "1") as one:
        report = asking(Request(iterations=5, start=1000), pids=[one.pid])
    assert states(report) == [State.WRONG]
    assert steps_of(report) == {one.pid: (1001, 1005)}
    assert not report.is_whole


@pytest.mark.parametrize("number", [-4, -2])
def test_too_few_iterations_are_wrong(number: int, asking: Asking) -> None:
    with training(asking.sockets, "--more", str(number), "--late", "3") as one:
        report = asking(pids=[one.pid])
    (recording,) = report.recordings
    assert recording.state is State.WRONG
    assert recording.iterations == 5 + number
    assert (recording.problem, recording.cut) == (f"recorded {5 + number} iterations, not 5", 0)
    assert not report.is_whole


def test_what_kineto_records_too_many_is_cut_from_the_file(asking: Asking) -> None:
    with training(asking.sockets, "--more", "3") as one:
        report = asking(pids=[one.pid])
    (recording,) = report.recordings
    assert (recording.state, recording.cut, recording.iterations) == (State.WHOLE, 3, 5)
    assert recording.file is not None
    trace = read(recording.file)
    assert (trace.steps, trace.size) == (tuple(range(11, 16)), recording.size)
    assert (recording.first, recording.last) == (11, 15)
    assert asking.files() == [recording.file.name]


def test_what_cannot_be_cut_is_wrong(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(trace: Trace, iterations: int) -> Trace:
        raise PermissionError(errno.EACCES, "Permission denied", str(trace.file))

    monkeypatch.setattr(session, "cut", fail)
    with training(asking.sockets, "--more", "3") as one:
        report = asking(pids=[one.pid])
    (recording,) = report.recordings
    assert recording.state is State.WRONG
    assert recording.problem is not None
    assert recording.problem.startswith("recorded 8 iterations, not 5, and cannot be cut: ")


@pytest.mark.parametrize(
    ("more", "state"), [(-2, State.WRONG), (0, State.UNSURE), (5, State.UNSURE)]
)
def test_without_marks_the_optimizers_steps_are_the_most_there_can_be(
    more: int, state: State, asking: Asking
) -> None:
    with training(asking.sockets, "--unmarked", "--more", str(more)) as one:
        report = asking(pids=[one.pid])
    (recording,) = report.recordings
    assert (recording.state, report.is_whole) == (state, False)
    assert (recording.iterations, recording.first, recording.last) == (5 + more, None, None)
    assert recording.optimizers == {"Optimizer.step#SGD.step": 5 + more}
    assert recording.problem == (
        f"recorded at most {5 + more} iterations, where 5 were asked for; the tracker is not "
        "installed in it, and PyTorch's own class counts each step of each optimizer. With "
        "kineto_step_tracker.pytorch.install() the training counts its iterations, and marks them"
    )


def test_half_a_file_is_wrong(asking: Asking) -> None:
    with training(asking.sockets, "--half") as one:
        report = asking(pids=[one.pid])
    (recording,) = report.recordings
    assert recording.state is State.WRONG
    assert recording.problem is not None
    assert recording.problem.startswith("wrote a file that cannot be read: ")
    assert str(recording.file) in recording.problem
    assert (recording.size, recording.iterations) == (None, None)
    assert not report.is_whole


def test_aligned_processes_record_the_same_steps(asking: Asking) -> None:
    with training(asking.sockets) as one, training(asking.sockets, "--steps", "60") as two:
        report = asking(Request(iterations=5, align=100), pids=[one.pid, two.pid])
    assert report.is_whole
    assert steps_of(report) == {one.pid: (102, 106), two.pid: (102, 106)}


def test_aligned_processes_between_which_a_multiple_passed_are_wrong(asking: Asking) -> None:
    with training(asking.sockets) as one, training(asking.sockets, "--steps", "160") as two:
        report = asking(Request(iterations=5, align=100), pids=[one.pid, two.pid])
    assert steps_of(report) == {one.pid: (102, 106), two.pid: (202, 206)}
    assert states(report) == [State.WRONG] * 2
    assert {recording.problem for recording in report.recordings} == {
        "recorded other steps than the rest: a multiple of 100 passed while one after another "
        "asked, which takes up to 5 s. Choose a larger one"
    }


def test_a_process_with_a_trace_of_its_own_is_busy(asking: Asking) -> None:
    with training(asking.sockets, "--busy") as one:
        report = asking(pids=[one.pid])
        assert one.told() == []
    assert states(report) == [State.BUSY]
    assert report.recordings[0].problem == (
        "is recording another trace; ask again when that is over"
    )
    assert not report.is_whole


def test_a_trace_that_torch_profiler_took_over_is_cancelled(asking: Asking) -> None:
    with training(asking.sockets, "--cancel") as one:
        report = asking(pids=[one.pid])
    assert states(report) == [State.CANCELLED]
    assert report.recordings[0].problem == (
        "began, and Kineto gave up: torch.profiler took over for a trace of its own, the folder is "
        "full or gone, or the process has become another program"
    )
    assert not report.is_whole
    assert asking.files() == []


def test_an_ask_that_was_on_its_way_when_it_began_cancels_nothing(asking: Asking) -> None:
    with training(asking.sockets, "--overlap", "--recording", "4") as one:
        assert asking(pids=[one.pid]).is_whole


@pytest.mark.parametrize("when", ["told", "recording"])
def test_a_process_that_dies_is_not_waited_for(when: str, asking: Asking) -> None:
    with training(asking.sockets, "--die", when) as one:
        report = asking(pids=[one.pid])
    assert states(report) == [State.DIED]
    assert report.recordings[0].problem == "ended before its trace was whole"
    assert (report.recordings[0].file is not None) == (when == "recording")
    assert not report.is_whole
    assert asking.files() == []


def test_a_named_process_that_dies_before_it_asks_has_died(asking: Asking) -> None:
    with training(asking.sockets, "--mute") as one:
        report = asking(pids=[one.pid], watch=once(lambda report: True, one.kill))
    assert states(report) == [State.DIED]
    assert not report.is_whole


def test_a_process_that_dies_after_it_has_delivered_is_whole(asking: Asking) -> None:
    with training(asking.sockets) as one, training(asking.sockets, "--recording", "5") as two:

        def has_delivered(report: Report) -> bool:
            # Either of the two may ask first, and the first comes first.
            return (one.pid, State.WRITTEN) in {(it.pid, it.state) for it in report.recordings}

        report = asking(pids=[one.pid, two.pid], watch=once(has_delivered, one.kill))
    assert report.is_whole


def test_who_was_told_and_takes_no_steps_is_unfinished(asking: Asking, clock: Clock) -> None:
    with training(asking.sockets, "--never") as one:
        over = once(all_are(State.TOLD), jump(clock, AGES))
        report = asking(pids=[one.pid], watch=over)
    assert states(report) == [State.UNFINISHED]
    assert report.recordings[0].problem == (
        "was told and has not begun: it has not come to the step, takes no steps of an optimizer, "
        "cannot write into the folder, or still waits for the step of another request, which "
        "Kineto does not tell. If it can, it records after all"
    )
    assert not report.is_whole


def test_who_still_records_is_unfinished_and_records_on(asking: Asking, clock: Clock) -> None:
    with training(asking.sockets, "--recording", "100000") as one:
        over = once(all_are(State.RECORDING), jump(clock, AGES))
        report = asking(pids=[one.pid], watch=over)
        assert states(report) == [State.UNFINISHED]
        assert report.recordings[0].problem == "has begun and not ended. It records on"
        assert not report.is_whole
        (file,) = asking.files()
        assert file.endswith(f"_{one.pid}.json.tmp")


def test_a_named_process_that_never_asks_is_unfinished(asking: Asking, clock: Clock) -> None:
    with training(asking.sockets) as one, training(asking.sockets, "--mute") as two:
        over = once(any_is(State.WRITTEN), jump(clock, AGES))
        report = asking(pids=[one.pid, two.pid], watch=over)
    found = {recording.pid: recording for recording in report.recordings}
    assert found[one.pid].state is State.WHOLE
    assert found[two.pid].state is State.UNFINISHED
    assert found[two.pid].problem == (
        "has not asked, which Kineto does every 5 s: start the training with "
        "KINETO_USE_DAEMON=1, and with the same KINETO_IPC_SOCKET_DIR as this, if any"
    )
    assert not report.is_whole


def test_a_named_process_is_waited_for_when_the_others_have_settled(
    asking: Asking, clock: Clock
) -> None:
    after: list[Report] = []

    def watch(report: Report) -> None:
        if any_is(State.WRITTEN)(report):
            after.append(report)
            clock.now = SETTLED if len(after) < 4 else AGES

    with training(asking.sockets) as one, training(asking.sockets, "--mute") as two:
        report = asking(pids=[one.pid, two.pid], watch=watch)
    assert report.seconds == AGES


def test_one_wrong_trace_is_enough_for_a_report_that_is_not_whole(asking: Asking) -> None:
    with training(asking.sockets) as one, training(asking.sockets, "--more", "-1") as two:
        report = asking(pids=[one.pid, two.pid])
    assert sorted(states(report)) == [State.WHOLE, State.WRONG]
    assert not report.is_whole


def test_only_named_processes_are_told(asking: Asking) -> None:
    with training(asking.sockets) as other, training(asking.sockets, "--pending", "5") as one:
        other.wait_until_it_asks()
        report = asking(pids=[one.pid])
        assert other.told() == []
    assert report.is_whole
    assert [recording.pid for recording in report.recordings] == [one.pid]


def test_to_name_an_ancestor_takes_those_below_it(asking: Asking, clock: Clock) -> None:
    with training(asking.sockets) as one, training(asking.sockets) as two:
        over = once(all_are(State.WRITTEN, 2), jump(clock, SETTLED))
        report = asking(pids=[os.getpid()], watch=over)
    assert report.is_whole
    assert {recording.pid for recording in report.recordings} == {one.pid, two.pid}


def test_a_process_that_is_not_there_is_refused(asking: Asking) -> None:
    before = descriptors()
    with pytest.raises(ProcessLookupError, match=f"there is no process {NOBODY}"):
        asking(pids=[os.getpid(), NOBODY])
    assert not asking.holds_the_name()
    assert descriptors() == before


def test_only_processes_of_the_job_are_told(asking: Asking, clock: Clock) -> None:
    with (
        training(asking.sockets, "--job-id", "8") as other,
        training(asking.sockets, "--job-id", "7", "--pending", "5") as one,
        training(asking.sockets) as without,
    ):
        other.wait_until_it_asks()
        without.wait_until_it_asks()
        over = once(any_is(State.WRITTEN), jump(clock, SETTLED))
        report = asking(job_id=7, watch=over)
        assert other.told() == without.told() == []
    assert report.is_whole
    assert [recording.pid for recording in report.recordings] == [one.pid]


def test_the_job_and_the_process_must_both_be_right(asking: Asking) -> None:
    with training(asking.sockets, "--job-id", "8") as one:
        one.wait_until_it_asks()
        report = asking(job_id=7, pids=[one.pid], timeout=0.5)
        assert one.told() == []
    assert states(report) == [State.UNFINISHED]


def test_a_worker_that_loads_data_is_not_waited_for(asking: Asking, clock: Clock) -> None:
    with training(asking.sockets, "--recording", "5", "--child", "--never") as one:
        over = once(
            lambda report: set(states(report)) == {State.TOLD, State.WRITTEN}, jump(clock, SETTLED)
        )
        report = asking(watch=over)
    assert report.is_whole
    found = {recording.pid: recording for recording in report.recordings}
    assert found.pop(one.pid).state is State.WHOLE
    (worker,) = found.values()
    assert (worker.state, worker.problem, worker.file) == (State.IDLE, None, None)


def test_a_launcher_is_not_waited_for_but_its_training_is(asking: Asking, clock: Clock) -> None:
    with training(asking.sockets, "--never", "--child", "--ignore", "3") as one:
        settle = once(any_is(State.WRITTEN), jump(clock, SETTLED))
        report = asking(pids=[one.pid], watch=settle)
    # It was named for what is below it, of which more might have come.
    assert report.seconds == SETTLED
    assert report.is_whole
    found = {recording.pid: recording for recording in report.recordings}
    assert found.pop(one.pid).state is State.IDLE
    (child,) = found.values()
    assert child.state is State.WHOLE


def test_a_launcher_is_idle_though_its_training_fails(asking: Asking, clock: Clock) -> None:
    with training(asking.sockets, "--never", "--child", "--more", "-1") as one:
        settle = once(any_is(State.WRITTEN), jump(clock, SETTLED))
        report = asking(pids=[one.pid], watch=settle)
    found = {recording.pid: recording.state for recording in report.recordings}
    assert found.pop(one.pid) is State.IDLE
    assert list(found.values()) == [State.WRONG]
    assert not report.is_whole


def test_who_takes_no_steps_is_waited_for_where_nobody_of_its_kin_records(
    asking: Asking, clock: Clock
) -> None:
    with training(asking.sockets) as one, training(asking.sockets, "--never") as two:
        over = once(
            lambda report: set(states(report)) == {State.TOLD, State.WRITTEN}, jump(clock, AGES)
        )
        report = asking(watch=over)
    found = {recording.pid: recording.state for recording in report.recordings}
    assert found == {one.pid: State.WHOLE, two.pid: State.UNFINISHED}
    assert not report.is_whole


@pytest.mark.parametrize("timeout", [0, -1, 1e9 + 1, float("inf"), float("nan")])
def test_a_timeout_out_of_range_is_refused(timeout: float, asking: Asking) -> None:
    with pytest.raises(ValueError, match=r"timeout must be above 0 and at most 1000000000 s, not"):
        asking(timeout=timeout)
    assert not asking.output.exists()


@pytest.mark.parametrize(
    "bad", [{"timeout": "1"}, {"pids": ["1"]}, {"pids": 1}, {"pids": [1.5]}, {"output": 1}]
)
def test_an_argument_of_another_type_is_refused(bad: dict[str, Any], asking: Asking) -> None:
    with pytest.raises(TypeError):
        asking(**bad)
    assert not asking.holds_the_name()


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("request", "ten", TypeError, "request must be a Request, not 'ten'"),
        ("pids", 3, TypeError, "pids must be an iterable of ints, not 3"),
        ("pids", [0], ValueError, "pids must be from 1 up, not 0"),
        ("pids", [-1], ValueError, "pids must be from 1 up, not -1"),
        ("pids", ["1"], TypeError, "pids must be ints, not '1'"),
        ("pids", [True], TypeError, "pids must be ints, not True"),
        ("job_id", "7", TypeError, "job_id must be an int or None, not '7'"),
        ("timeout", "7", TypeError, "timeout must be a number of seconds, not '7'"),
        ("timeout", True, TypeError, "timeout must be a number of seconds, not True"),
        ("watch", 3, TypeError, "watch must be callable or None, not 3"),
    ],
)
def test_a_bad_argument_is_named(
    name: str, value: Any, error: type[Exception], message: str, asking: Asking
) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        asking(**{name: value})
    assert list(asking.sockets.iterdir()) == []


@pytest.mark.parametrize("name", ["a#b", "a=b", "a\nb", 'a"b', "a\\b", "a.json.d"])
def test_a_folder_that_kineto_cannot_be_told_is_refused(name: str, asking: Asking) -> None:
    with pytest.raises(ValueError, match="output must be a path that Kineto can read, without "):
        asking(output=asking.sockets / name)
    assert not (asking.sockets / name).exists()


@pytest.mark.parametrize("name", ["Spur ü 轨迹", os.fsdecode(b"no UTF-8: \xff")])
def test_a_folder_with_other_letters_is_fine(name: str, asking: Asking) -> None:
    asking.output = asking.sockets / name
    with training(asking.sockets) as one:
        assert asking(pids=[one.pid]).is_whole
    assert len(asking.files()) == 1


def test_a_folder_that_cannot_be_made_is_refused(asking: Asking) -> None:
    asking.output.write_text("")
    for output in (asking.output, asking.output / "below"):
        with pytest.raises(OSError, match=re.escape(str(asking.output))):
            asking(output=output)
    assert not asking.holds_the_name()


@pytest.mark.skipif(os.geteuid() == 0, reason="to root nothing is forbidden")
def test_a_folder_that_cannot_be_written_is_refused(asking: Asking) -> None:
    asking.output.mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        asking()
    assert not asking.holds_the_name()


def test_a_socket_folder_that_is_not_there_is_refused(asking: Asking) -> None:
    with pytest.raises(
        NotADirectoryError, match="socket_folder, or KINETO_IPC_SOCKET_DIR, must name a folder"
    ):
        asking(socket_folder=asking.sockets / "none")


def test_two_at_once_are_refused_and_the_first_goes_on(asking: Asking) -> None:
    def ask_as_well() -> None:
        with pytest.raises(DaemonRunningError, match=r"another daemon holds .*/dynolog"):
            on_demand.trace(FIVE, output=asking.output, socket_folder=asking.sockets, timeout=1)
        assert asking.holds_the_name()

    with training(asking.sockets) as one:
        assert asking(pids=[one.pid], watch=once(lambda report: True, ask_as_well)).is_whole


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("state", [State.TOLD, State.WRITTEN])
def test_what_is_raised_in_watch_comes_out_and_leaves_nothing_behind(
    error: type[BaseException], state: State, asking: Asking
) -> None:
    def fail() -> None:
        raise error

    before = descriptors()
    with training(asking.sockets) as one:
        during = descriptors()
        with pytest.raises(error):
            asking(pids=[one.pid], watch=once(all_are(state), fail))
        assert descriptors() == during
    assert descriptors() == before
    assert not asking.holds_the_name()


def test_many_calls_leave_no_descriptor_open(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_TICK", 0.001)
    with training(asking.sockets, "--busy") as one:
        before = descriptors()
        for _ in range(20):
            asking(pids=[one.pid, os.getpid()], timeout=0.002)
            asking(timeout=0.002)
            with pytest.raises(ProcessLookupError):
                asking(pids=[one.pid, NOBODY])
            with pytest.raises(NotADirectoryError):
                asking(socket_folder=asking.sockets / "none")
        asking(pids=[one.pid])
        assert descriptors() == before


def test_datagrams_that_are_not_kinetos_are_counted_by_why(asking: Asking, clock: Clock) -> None:
    daemon = str(asking.sockets / "dynolog")
    mine = ask(os.getpid())
    other_size = (len(mine) + 1).to_bytes(8, sys.byteorder) + mine[8:]
    other_kind = message(mine[40:], "reg")
    datagrams = [b"", b"x", bytes(40), mine[:-1], mine + b"\0", other_size, other_kind]

    def send() -> None:
        with client() as sender:
            for datagram in datagrams:
                sender.sendto(datagram, daemon)
            sender.sendto(ask(os.getppid()), daemon)

    # Later, since a socket's queue may hold no more than ten.
    def send_more() -> None:
        with client() as sender:
            sender.sendto(bytes(70_000), daemon)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nameless:
            nameless.sendto(mine, daemon)
            nameless.sendto(mine, daemon)

    def refused(number: int) -> Callable[[Report], bool]:
        return lambda report: sum(report.refused.values()) == number

    first = once(lambda report: True, send)
    second = once(refused(len(datagrams) + 1), send_more)
    over = once(refused(len(datagrams) + 4), jump(clock, AGES))
    report = asking(watch=each_of(first, second, over))
    assert report.refused == {
        "malformed": len(datagrams),
        "in the name of another process": 1,
        "without an address to answer": 2,
        "longer than any that Kineto sends": 1,
    }
    assert report.recordings == ()


def test_who_cannot_be_answered_was_not_told(asking: Asking, clock: Clock) -> None:
    def ask_and_leave() -> None:
        with client() as sender:
            sender.sendto(ask(os.getpid()), str(asking.sockets / "dynolog"))

    leave = once(lambda report: True, ask_and_leave)
    over = once(lambda report: bool(report.refused), jump(clock, AGES))
    report = asking(watch=each_of(leave, over))
    assert report.refused == {"answer not taken": 1}
    assert states(report) == [State.UNFINISHED]
    assert report.recordings[0].problem is not None
    assert report.recordings[0].problem.startswith("has not asked")
    assert not report.is_whole


def test_it_runs_on_any_thread(asking: Asking) -> None:
    reports: list[Report] = []
    with training(asking.sockets) as one:
        thread = threading.Thread(target=lambda: reports.append(asking(pids=[one.pid])))
        thread.start()
        thread.join(PATIENCE)
    (report,) = reports
    assert report.is_whole


def test_a_flood_of_garbage_keeps_nobody_from_its_trace(asking: Asking, clock: Clock) -> None:
    daemon = str(asking.sockets / "dynolog")
    flood = subprocess.Popen([sys.executable, "-I", "-S", "-c", FLOOD, daemon])
    with ExitStack() as stack:
        stack.callback(flood.wait)
        stack.callback(flood.kill)

        def start() -> None:
            stack.enter_context(training(asking.sockets, "--ignore", "3"))

        flooded = once(lambda report: sum(report.refused.values()) > 3_000, start)
        over = once(all_are(State.WRITTEN), jump(clock, SETTLED))
        report = asking(watch=each_of(flooded, over))
    assert report.is_whole
    assert set(report.refused) >= {"malformed", "without an address to answer"}


@pytest.mark.parametrize("pid", [2**31, 2**64])
def test_a_pid_that_no_process_can_have_is_not_there(pid: int, asking: Asking) -> None:
    with pytest.raises(ProcessLookupError, match=f"there is no process {pid}$"):
        asking(pids=[pid])
