"""The look from outside: steps and rates, which job, and what answers when there is none."""

from __future__ import annotations

import doctest
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore

from kineto_step_tracker.fleet import Observer, RankView, connection, observer, open_store
from kineto_step_tracker.fleet.board import Board

from .stores import PREFIX, Connect, Job, wait_until


def publish(store: Store, steps: dict[int, int], prefix: str = PREFIX, world_size: int = 3) -> None:
    board = Board(store, world_size, prefix)
    board.agree(5)
    for rank, step in steps.items():
        board.publish(rank, step, "me")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Accepts, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_example_in_the_docstring() -> None:
    result = doctest.testmod(observer)
    assert result.attempted > 0
    assert result.failed == 0


def test_how_each_rank_stands(connect: Connect) -> None:
    publish(connect(), {0: 40, 2: 31})
    view = Observer(connect()).look()
    assert (view.step, view.skew) == (40, 9)
    assert [(rank.rank, rank.step, rank.behind) for rank in view.ranks] == [
        (0, 40, 0),
        (1, None, None),
        (2, 31, 9),
    ]
    assert view.ranks[1] == RankView(1)
    assert all(rank.age is not None and 0 <= rank.age < 60 for rank in view.ranks[::2])


def test_a_job_of_which_no_rank_has_published_a_step() -> None:
    store = HashStore()
    publish(store, {})
    view = Observer(store).look()
    assert (view.step, view.skew, view.ranks) == (0, 0, (RankView(0), RankView(1), RankView(2)))


def test_it_sees_the_ranks_of_a_job_that_runs(connect: Connect, job: Job) -> None:
    ranks = [job.start(connect(), rank, start=1) for rank in range(2)]
    wait_until(lambda: ranks[0].says() == {0: 1, 1: 1})
    looks = Observer(connect(), 2)
    assert (looks.world_size, looks.every) == (2, 1)
    ranks[1].train(3)
    wait_until(lambda: [rank.step for rank in looks.look().ranks] == [1, 4])
    assert looks.look().ranks[0].behind == looks.look().skew == 3
    wait_until(lambda: looks.look().ranks[1].rate is not None)


def test_rates_are_of_the_last_two_times_that_a_rank_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 1_000.0
    monkeypatch.setattr("time.time", lambda: clock)
    monkeypatch.setattr("time.monotonic", lambda: clock)
    store = HashStore()
    publish(store, {0: 10, 1: 10})
    looks = Observer(store)

    def rates() -> list[float | None]:
        return [rank.rate for rank in looks.look().ranks]

    assert rates() == [None, None, None]
    clock = 1_004.0
    publish(store, {0: 30, 2: 5})
    clock = 1_010.0
    assert rates() == [5, None, None]
    assert rates() == [5, None, None]
    clock = 1_024.0
    publish(store, {0: 20, 1: 10, 2: 5})
    assert rates() == [-0.5, 0, 0]


def test_a_job_is_found_by_the_end_of_its_prefix(connect: Connect) -> None:
    """Behind what torchrun and the process group put before it, from both sides of that."""
    outer = PrefixStore("/worker/attempt_0", connect())
    publish(PrefixStore("default_pg/0", outer), {0: 7})
    name = "/worker/attempt_0/default_pg/0/kineto_step_tracker"
    for prefix in (None, PREFIX, f"0/{PREFIX}", name):
        looks = Observer(connect(), prefix=prefix)
        assert looks.prefix == name
        assert looks.look().step == 7
    assert Observer(outer).look().step == 7
    with pytest.raises(LookupError, match=rf"under the prefix 'tracker' .* there is {name}$"):
        Observer(connect(), prefix="tracker")


def test_it_leaves_no_job_behind_where_none_is() -> None:
    store = HashStore()
    publish(PrefixStore("/a", store), {0: 7})
    for _ in range(2):
        assert Observer(store).prefix == f"/a/{PREFIX}"
    assert sum(key.endswith("job/form") for key in store.list_keys()) == 1


def test_one_of_several_jobs_has_to_be_chosen(connect: Connect) -> None:
    for prefix, step in (("b", 1), ("a", 2), ("x/a", 3)):
        publish(connect(), {0: step}, prefix)
    with pytest.raises(LookupError, match=r"several jobs .* choose one by its prefix: a, b, x/a$"):
        Observer(connect())
    with pytest.raises(LookupError, match=r"several jobs .*: a, x/a$"):
        Observer(connect(), prefix="a")
    assert Observer(connect(), prefix="b").look().step == 1
    assert Observer(connect(), prefix="x/a").look().step == 3


def test_nothing_there(connect: Connect) -> None:
    connect().set("a/job/forms", "")
    for prefix in (None, "a"):
        with pytest.raises(LookupError, match=r"^no rank has published anything in this store$"):
            Observer(connect(), prefix=prefix)


def test_another_world_size() -> None:
    store = HashStore()
    publish(store, {})
    with pytest.raises(ValueError, match=r"^the job's world size is 3, not 2$"):
        Observer(store, 2)


def test_open_store_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with pytest.raises(FileNotFoundError):
        open_store(f"file:{path}")
    assert not path.exists()
    publish(FileStore(str(path)), {0: 3})
    for address in (f"file:{path}", f"file://{path}"):
        assert Observer(open_store(address)).look().step == 3


def test_open_store_of_a_file_that_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_text("What begins with no key that a store has.")
    with pytest.raises(RuntimeError, match=r"^the file is no store of torch.distributed$"):
        open_store(f"file:{path}")


def test_open_store_of_a_host(listener: socket.socket) -> None:
    host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    publish(host, {0: 3})
    assert Observer(open_store(f"tcp://127.0.0.1:{host.port}")).look().step == 3
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        open_store(f"tcp://127.0.0.1:{port}")


def test_open_store_of_a_listener_that_does_not_answer(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 0.2)
    with pytest.raises(TimeoutError, match=r"127.0.0.1:\d+ has not answered in 0.2 s"):
        open_store(f"tcp://127.0.0.1:{listener.getsockname()[1]}")


def test_open_store_of_a_listener_that_is_no_store(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is alive, and gives no answer to what a store asks."""
    monkeypatch.setattr(connection, "_CONNECTING", 0.2)
    monkeypatch.setattr(observer, "find_host", lambda host, port: None)
    with pytest.raises(TimeoutError, match=r"does not answer as a store of torch.distributed"):
        open_store(f"tcp://127.0.0.1:{listener.getsockname()[1]}")


@pytest.mark.parametrize(
    "address",
    ["", "store", "tcp://", "tcp://:1", "tcp://h", "tcp://h:", "tcp://h:0", "tcp://h:65536", "h:1"],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match=r"is given as tcp://HOST:PORT or file:PATH$"):
        open_store(address)
