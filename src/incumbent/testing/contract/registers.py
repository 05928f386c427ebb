"""Cases: registers, the calls of a store that the rules of a lease decide over."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from typing import Any

from incumbent.errors import StoreError
from incumbent.model import Field
from incumbent.rules.record import NOTHING, Entry, after
from incumbent.stores.registers import Incarnation, Place, Seen, Swap, Wanted
from incumbent.testing.contract.bench import Bench, needs

_PLACE: Place = ("field", "state")
_AN_HOUR = 3_600_000_000


@needs("registers")
class RegisterCases:
    """A write happens only if the store still has what the writer has read."""

    def test_a_write_by_an_old_version_is_refused_with_what_is_there(self, bench: Bench) -> None:
        old = _loaded(bench)
        assert _write(bench, old, 1) is None
        there = _write(bench, old, 2)
        assert isinstance(there, Seen)
        assert there.version != old.version
        assert _shown(there) == _shown(_loaded(bench)) == (1, Field(b"1", 1))

    def test_what_was_written_is_read_by_every_client(self, bench: Bench) -> None:
        for turn in range(1, 4):
            assert _write(bench, _loaded(bench), turn) is None
            with bench.other() as other:
                assert _shown(_loaded(other)) == (turn, Field(b"%d" % turn, turn))

    def test_every_write_makes_another_version(self, bench: Bench) -> None:
        versions = [_loaded(bench).version]
        for _ in range(10):
            # Also one that changes nothing: a renewal may look so.
            assert _write(bench, _loaded(bench), 1) is None
            versions.append(_loaded(bench).version)
        assert len(set(versions)) == len(versions)

    def test_no_version_comes_back_after_a_name_was_forgotten(self, bench: Bench) -> None:
        versions = []
        for _ in range(3):
            assert _write(bench, _loaded(bench), 1, keeps=1_000) is None
            versions.append(_loaded(bench).version)
            bench.outlive(bench.ttl)
        assert len(set(versions)) == len(versions)

    def test_of_many_writes_by_one_version_one_is_carried_out(self, bench: Bench) -> None:
        old = _loaded(bench)
        found = bench.in_threads(8, lambda mine, index: _write(mine, old, index + 1))
        assert sum(reply is None for reply in found) == 1

    def test_a_write_is_refused_while_the_clock_is_behind_the_one_it_was_decided_by(
        self, bench: Bench
    ) -> None:
        seen = _loaded(bench)
        assert isinstance(_write(bench, seen._replace(now=seen.now + _AN_HOUR), 1), StoreError)
        assert _shown(_loaded(bench)) == _shown(seen)

    def test_a_write_for_another_incarnation_is_refused(self, bench: Bench) -> None:
        seen = _loaded(bench)
        other = seen._replace(incarnation=Incarnation("another"))
        assert isinstance(_write(bench, other, 1), Seen | StoreError)
        assert _shown(_loaded(bench)) == _shown(seen)


def _loaded(bench: Bench) -> Seen:
    wanted = Wanted(bench.key(), (_PLACE,))
    (seen,) = bench.world.registers().load([wanted], bench.until())
    assert isinstance(seen, Seen), seen
    return seen


def _write(bench: Bench, seen: Seen, turn: int, keeps: int = _AN_HOUR) -> Any:
    record = NOTHING._replace(changes=turn, keep_until=after(keeps))
    entry = Entry(*_PLACE, Field(b"%d" % turn, turn))
    swap = Swap(Wanted(bench.key(), (_PLACE,)), seen, record, (entry,))
    (reply,) = bench.world.registers().swap([swap], bench.until())
    return reply


def _shown(seen: Seen) -> tuple[int, Field | None]:
    return seen.record.changes, seen.field(_PLACE[1])
