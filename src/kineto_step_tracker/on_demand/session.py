"""One request, from the first process that asks to the last file that is checked.

It imports the protocol, the request and the reader of trace files. A process is told again each
time that it asks, until its file appears: Kineto forgets a request that comes before the
process's first step, and ignores one while another is pending, and does not say so in either case.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from kineto_step_tracker.on_demand.protocol import Ask, Listener
from kineto_step_tracker.on_demand.request import Request, check_path
from kineto_step_tracker.on_demand.trace_file import cut, read

# Kineto asks every 5 seconds: by then everybody who is there has.
_SETTLE = 6.0
_TICK = 0.1
_LONGEST = 10**9

_SILENT = (
    "has not asked, which Kineto does every 5 s: start the training with KINETO_USE_DAEMON=1, and "
    "with the same KINETO_IPC_SOCKET_DIR as this, if any"
)
_NOT_BEGUN = (
    "was told and has not begun: it has not come to the step, takes no steps of an optimizer, "
    "cannot write into the folder, or still waits for the step of another request, which Kineto "
    "does not tell. If it can, it records after all"
)
_NOT_ENDED = "has begun and not ended. It records on"
_BUSY = "is recording another trace; ask again when that is over"
_CANCELLED = (
    "began, and Kineto gave up: torch.profiler took over for a trace of its own, the folder is "
    "full or gone, or the process has become another program"
)
_DIED = "ended before its trace was whole"
_ELSEWHERE = (
    "recorded other steps than from {} on: it had passed that when it was told, or its count is "
    "not Kineto's plus one, since it was set by hand or began with a later step"
)
_UNLIKE = (
    "recorded other steps than the rest: a multiple of {} passed while one after another asked, "
    "which takes up to 5 s. Choose a larger one"
)
_COUNTS = "recorded {} iterations, not {}"
_UNMARKED = (
    "recorded at most {} iterations, where {} were asked for; the tracker is not installed in it, "
    "and PyTorch's own class counts each step of each optimizer. With "
    "kineto_step_tracker.pytorch.install() the training counts its iterations, and marks them"
)


class State(StrEnum):
    """How far a process is. The first four are on the way, the others final.

    - ``silent``: it has not asked yet.
    - ``told``: it has been told what to record, and has not begun.
    - ``recording``: it has begun.
    - ``written``: its file is there, and has not been looked at yet.
    - ``whole``: the file holds the steps that were asked for.
    - ``wrong``: the file holds other steps, or cannot be read.
    - ``unsure``: the file has enough iterations, but none of the tracker's marks to tell by.
    - ``busy``: it was recording another trace.
    - ``cancelled``: it had begun, and Kineto gave up.
    - ``died``: the process ended before its file was whole.
    - ``unfinished``: the timeout came first.
    - ``idle``: it takes no steps itself, as what launches training or loads data for it.
    """

    SILENT = "silent"
    TOLD = "told"
    RECORDING = "recording"
    WRITTEN = "written"
    WHOLE = "whole"
    WRONG = "wrong"
    UNSURE = "unsure"
    BUSY = "busy"
    CANCELLED = "cancelled"
    DIED = "died"
    UNFINISHED = "unfinished"
    IDLE = "idle"


_ON_THE_WAY = (State.SILENT, State.TOLD, State.RECORDING)
_FINE = (State.WHOLE, State.IDLE)


@dataclass
class Recording:
    """What one process was asked for, and what came of it.

    ``pid`` is the process, ``asked`` the request in words, ``state`` how far it is, ``file`` its
    trace and ``size`` the bytes in it. ``first`` and ``last`` are the steps recorded, None without
    the tracker's marks in the file; ``iterations`` is how many it holds, ``cut`` how many more
    Kineto had recorded before it stopped, ``optimizers`` how often each class of them stepped in
    it, ``problem`` what is wrong.
    """

    pid: int
    asked: str
    state: State = State.SILENT
    file: Path | None = None
    size: int | None = None
    iterations: int | None = None
    first: int | None = None
    last: int | None = None
    cut: int = 0
    optimizers: dict[str, int] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Report:
    """Where a request stands: after how many seconds, with which processes.

    ``refused`` counts the datagrams that were not answered, by why.
    """

    seconds: float
    recordings: tuple[Recording, ...]
    refused: dict[str, int]

    @property
    def is_whole(self) -> bool:
        """Whether there is a trace, and every process that was asked delivered a whole one."""
        states = [recording.state for recording in self.recordings]
        return State.WHOLE in states and all(state in _FINE for state in states)


def trace(
    request: Request,
    *,
    output: str | os.PathLike[str] = ".",
    pids: Iterable[int] = (),
    job_id: int | None = None,
    timeout: float = 120.0,
    socket_folder: str | os.PathLike[str] | None = None,
    watch: Callable[[Report], object] | None = None,
) -> Report:
    """Ask training on this machine for a trace, and wait for the files.

    It asks every process that runs with ``KINETO_USE_DAEMON=1``, whether started before or
    meanwhile, and returns when all that asked within 6 s of the first have delivered or failed. A
    process that takes no steps and whose parent or child records, such as ``torchrun`` and a
    worker that loads data, is not waited for. Nor is one asked that belongs to another user,
    unless this runs as root.

    Args:
        request: what to record.
        output: the folder for the files, made if need be. The processes write into it, each a
            file that is named after the time and its id.
        pids: only processes with these ids, and those below them. All of them are waited for.
        job_id: only processes whose environment has this number as ``SLURM_JOB_ID``.
        timeout: in seconds, above 0: how long to wait in all.
        socket_folder: where Kineto's sockets are, if not where ``KINETO_IPC_SOCKET_DIR`` says.
        watch: called some ten times a second with where it stands.

    Returns:
        what came of it, process by process. With none, nobody asked.

    Raises:
        DaemonRunningError: another daemon is running, or another call of this.
        OSError: the folder cannot be written, or there is no process of such an id.
        TypeError, ValueError, RuntimeError: a bad argument, or not on Linux.

    One call at a time on a machine, from any thread. It gives the GIL up while it waits, so the
    training may run in the same process. After KeyboardInterrupt, as after the timeout, a process
    that has been told still records, once it comes to the step.

    The protocol is that of https://github.com/facebookincubator/dynolog, as libkineto in PyTorch
    2.13 speaks it.
    """
    if not isinstance(pids, Iterable):
        raise TypeError(f"pids must be an iterable of ints, not {pids!r}")
    pids = frozenset(pids)
    _check_arguments(request, pids, job_id, timeout, watch)
    folder = _writable(Path(output))
    with Listener(socket_folder) as listener, contextlib.ExitStack() as cleanup:
        session = _Session(request, folder, pids, job_id, listener, cleanup)
        while not session.is_over() and session.seconds < timeout:
            session.serve()
            if watch is not None:
                watch(session.report())
    session.conclude()
    # Only now: to read a long file takes the time in which somebody else would have had an answer.
    for recording in session.recordings:
        if recording.state is State.WRITTEN:
            _check(recording, request)
            if watch is not None:
                watch(session.report())
    if request.align is not None:
        _compare(session.recordings, request.align)
    return session.report()


def _check_arguments(
    request: object, pids: Iterable[object], job_id: object, timeout: object, watch: object
) -> None:
    if not isinstance(request, Request):
        raise TypeError(f"request must be a Request, not {request!r}")
    for pid in pids:
        if not isinstance(pid, int) or isinstance(pid, bool):
            raise TypeError(f"pids must be ints, not {pid!r}")
        if pid < 1:
            raise ValueError(f"pids must be from 1 up, not {pid}")
    if job_id is not None and (not isinstance(job_id, int) or isinstance(job_id, bool)):
        raise TypeError(f"job_id must be an int or None, not {job_id!r}")
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
    if not 0 < timeout <= _LONGEST:
        raise ValueError(f"timeout must be above 0 and at most {_LONGEST} s, not {timeout!r}")
    if watch is not None and not callable(watch):
        raise TypeError(f"watch must be callable or None, not {watch!r}")


def _writable(folder: Path) -> Path:
    folder = folder.absolute()
    check_path("output", folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "output must be a folder", os.fspath(folder))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return folder


@dataclass
class _Process:
    recording: Recording
    ancestors: tuple[int, ...] = ()
    # Where Kineto may write: one for each time that it was told.
    files: list[Path] = field(default_factory=list)
    is_dead: bool = False
    # It was free for another trace, though it had begun ours and its file was not there.
    is_suspect: bool = False

    @property
    def has_begun(self) -> bool:
        return self.recording.file is not None

    def is_kin(self, other: _Process) -> bool:
        return self.recording.pid in other.ancestors or other.recording.pid in self.ancestors

    def fail(self, state: State, problem: str) -> None:
        self.recording.state, self.recording.problem = state, problem
        if state in (State.DIED, State.CANCELLED):
            for file in map(_unfinished, self.files):
                # What has been written may be wanted.
                if file.exists() and file.stat().st_size == 0:
                    file.unlink()


class _Session:
    def __init__(
        self,
        request: Request,
        folder: Path,
        pids: frozenset[int],
        job_id: int | None,
        listener: Listener,
        cleanup: contextlib.ExitStack,
    ) -> None:
        self._request = request
        self._folder = folder
        self._pids = pids
        self._job_id = job_id
        self._listener = listener
        self._cleanup = cleanup
        self._selector = cleanup.enter_context(selectors.DefaultSelector())
        self._selector.register(listener, selectors.EVENT_READ)
        self._begun = time.monotonic()
        self._first_ask: float | None = None
        self._asked: dict[int, _Process] = {}
        # Those of the pids that have not asked, nor anybody below them.
        self._silent = {pid: self._new(pid) for pid in sorted(pids)}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    @property
    def recordings(self) -> list[Recording]:
        return [process.recording for process in self._processes]

    @property
    def _processes(self) -> list[_Process]:
        return [*self._silent.values(), *self._asked.values()]

    def report(self) -> Report:
        copies = tuple(map(replace, self.recordings))
        return Report(self.seconds, copies, dict(self._listener.refused))

    def serve(self) -> None:
        """Answer who has asked, and look at the files. Waits for a moment if nothing happens."""
        for key, _ in self._selector.select(_TICK):
            if isinstance(key.data, _Process):
                key.data.is_dead = True
                self._selector.unregister(key.fileobj)
            else:
                for ask in self._listener.asks():
                    self._answer(ask)
        for process in self._processes:
            self._look(process)

    def is_over(self) -> bool:
        training = [process.recording for process in self._processes if not self._is_aside(process)]
        if any(recording.state in _ON_THE_WAY for recording in training):
            return False
        # Of one that is named for those below it, more may come.
        if self._pids and self._pids <= {recording.pid for recording in training}:
            return True
        return self._first_ask is not None and self.seconds - self._first_ask > _SETTLE

    def conclude(self) -> None:
        """Give everybody a final state who is still on the way."""
        ends = {
            State.SILENT: _SILENT,
            State.TOLD: _NOT_BEGUN,
            State.RECORDING: _NOT_ENDED,
        }
        for process in self._processes:
            if self._is_aside(process):
                process.recording.state, process.recording.problem = State.IDLE, None
            elif process.recording.state in ends:
                process.fail(State.UNFINISHED, ends[process.recording.state])

    def _new(self, pid: int) -> _Process:
        process = _Process(Recording(pid, self._request.steps))
        try:
            alive = os.pidfd_open(pid)
        except (ProcessLookupError, FileNotFoundError, OverflowError):
            raise ProcessLookupError(errno.ESRCH, f"there is no process {pid}") from None
        self._cleanup.callback(os.close, alive)
        self._selector.register(alive, selectors.EVENT_READ, process)
        return process

    def _answer(self, ask: Ask) -> None:
        file = self._file_for(ask) if self._wants(ask) else None
        if file is None:
            self._listener.tell(ask, "")
        elif self._listener.tell(ask, self._request.configuration(file)):
            process = self._asked[ask.pid]
            process.recording.state = State.TOLD
            process.files.append(_written_by(file, ask))

    def _wants(self, ask: Ask) -> bool:
        """Return whether the process is one that is asked for, and take it in if it is new."""
        if self._pids and self._pids.isdisjoint((ask.pid, *ask.ancestors)):
            return False
        if self._job_id not in (None, ask.job_id):
            return False
        if ask.pid not in self._asked:
            process = self._silent.get(ask.pid)
            if process is None:
                try:
                    process = self._new(ask.pid)
                except ProcessLookupError:  # it asked, and ended
                    return False
            process.ancestors = ask.ancestors
            for pid in (ask.pid, *ask.ancestors):
                self._silent.pop(pid, None)
            self._asked[ask.pid] = process
        if self._first_ask is None:
            self._first_ask = self.seconds
        return True

    def _file_for(self, ask: Ask) -> Path | None:
        """Return what a process is to be told to write, or None if it is not to record."""
        process = self._asked[ask.pid]
        self._look(process)
        state = process.recording.state
        if state is State.RECORDING:
            # Twice, as it may have begun between its asking and our looking.
            if ask.is_free and process.is_suspect:
                process.fail(State.CANCELLED, _CANCELLED)
            process.is_suspect = ask.is_free
        elif state is State.SILENT and not ask.is_free:
            process.fail(State.BUSY, _BUSY)
        elif state in (State.SILENT, State.TOLD) and ask.is_free:
            file = self._folder / time.strftime("kineto_%Y%m%d-%H%M%S.json")
            written = _written_by(file, ask)
            # Else the next time: it would be taken for what another request has left.
            if written in process.files or not written.exists():
                return file
        return None

    def _look(self, process: _Process) -> None:
        """See how far a process is, by its files and by whether it lives."""
        recording = process.recording
        if recording.state not in _ON_THE_WAY:
            return
        for file in process.files:
            if file.exists():
                recording.state, recording.file = State.WRITTEN, file
                return
            if _unfinished(file).exists():
                recording.state, recording.file = State.RECORDING, file
        if process.is_dead:
            process.fail(State.DIED, _DIED)

    def _is_aside(self, process: _Process) -> bool:
        """Return whether it only belongs to training: it launches it, or loads data for it."""
        return (
            process.recording.state in (State.TOLD, State.DIED)
            and not process.has_begun
            and any(other.has_begun and other.is_kin(process) for other in self._processes)
        )


def _written_by(file: Path, ask: Ask) -> Path:
    """Return where a process writes that is told to write a file: it puts its id into the name."""
    return file.with_stem(f"{file.stem}_{ask.pids[0]}")


def _unfinished(file: Path) -> Path:
    """Where Kineto writes until the file is complete."""
    return file.with_name(f"{file.name}.tmp")


def _check(recording: Recording, request: Request) -> None:
    """Read the file of a recording, and say whether it is what was asked for."""
    assert recording.file is not None
    recording.state = State.WRONG
    try:
        found = read(recording.file)
    except (OSError, ValueError) as error:
        recording.problem = f"wrote a file that cannot be read: {error}"
        return
    more, uncut = len(found.steps) - request.iterations, ""
    if more > 0:
        try:
            found, recording.cut = cut(found, request.iterations), more
        except OSError as error:
            uncut = f", and cannot be cut: {error}"
    recording.size, recording.iterations = found.size, found.iterations
    recording.optimizers = dict(Counter(span.name for span in found.optimizers))
    if found.steps:
        recording.first, recording.last = found.steps[0], found.steps[-1]
    counts = found.iterations, request.iterations
    if not found.steps:
        recording.problem = _UNMARKED.format(*counts)
        recording.state = State.WRONG if found.iterations < request.iterations else State.UNSURE
    elif found.iterations != request.iterations:
        recording.problem = _COUNTS.format(*counts) + uncut
    elif request.start not in (None, recording.first):
        recording.problem = _ELSEWHERE.format(request.start)
    else:
        recording.state = State.WHOLE


def _compare(recordings: Iterable[Recording], align: int) -> None:
    """Fail those that were to record the same steps and did not."""
    whole = [recording for recording in recordings if recording.state is State.WHOLE]
    if len({recording.first for recording in whole}) > 1:
        for recording in whole:
            recording.state, recording.problem = State.WRONG, _UNLIKE.format(align)
