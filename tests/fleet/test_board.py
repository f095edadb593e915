"""What stands where in the store: one form, what each rank has published, nothing that waits."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

from torch._C._distributed_c10d import HashStore

from kineto_step_tracker.fleet import FleetError, board
from kineto_step_tracker.fleet.board import Board

from .stores import PREFIX, Connect, Script, ScriptedStore


def test_what_is_published_is_read_and_what_is_not_is_left_out(connect: Connect) -> None:
    """Also by one who has read before, when nobody had published."""
    ours, theirs = (Board(connect(), 3, PREFIX) for _ in range(2))
    assert theirs.read() == {}
    ours.publish(1, 7, "me")
    ours.publish(2, 0, "you")
    ours.publish(1, 8, "me")
    for who in (ours, theirs):
        read = who.read()
        assert {rank: (step, identity) for rank, (step, _, identity) in read.items()} == {
            1: (8, "me"),
            2: (0, "you"),
        }
        assert all(0 <= published.age < 60 for published in read.values())


def test_the_age_is_what_the_clocks_say_but_not_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1_000.0
    monkeypatch.setattr("time.time", lambda: clock)
    ours = Board(HashStore(), 1, PREFIX)
    ours.publish(0, 1, "me")
    clock = 1_002.5
    assert ours.read()[0].age == 2.5
    clock = 990.0
    assert ours.read()[0].age == 0


def test_more_ranks_than_are_read_at_once(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "_AT_ONCE", 2)
    ours = Board(connect(), 5, PREFIX)
    for rank in range(5):
        ours.publish(rank, 10 + rank, "me")
    assert {rank: step for rank, (step, *_) in ours.read().items()} == {
        rank: 10 + rank for rank in range(5)
    }


def test_how_many_requests_it_takes_to_read() -> None:
    """One that asks for all, once that they are known to be there."""
    script = Script()
    ours = Board(ScriptedStore(HashStore(), script), 100, PREFIX)
    ours.read()
    script.operations.clear()
    for _ in range(3):
        ours.read()
    assert script.operations == ["multi_get"] * 3


def test_the_form_is_what_came_first(connect: Connect) -> None:
    first, second = Board(connect(), 2, PREFIX), Board(connect(), 3, PREFIX)
    assert first.form() is None
    first.agree(4)
    first.agree(4)
    with pytest.raises(FleetError, match=r"are \(1, 2, 4\) there and \(1, 3, 4\) here"):
        second.agree(4)
    with pytest.raises(FleetError, match=r"are \(1, 2, 4\) there and \(1, 2, 5\) here"):
        first.agree(5)
    assert first.form() == second.form() == (2, 4)


def test_the_form_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    Board(store, 2, PREFIX).agree(1)
    monkeypatch.setattr(board, "_FORMAT", "2")
    with pytest.raises(FleetError, match="by another version of this package"):
        Board(store, 2, PREFIX).form()
    with pytest.raises(FleetError, match=r"\(1, 2, 1\) there and \(2, 2, 1\) here"):
        Board(store, 2, PREFIX).agree(1)
