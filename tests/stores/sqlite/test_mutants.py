"""The tests see what is wrong with a statement of SQLite: each planted bug is caught by one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from incumbent.stores.sqlite import schema
from incumbent.testing.contract import Bench, StoreContract
from incumbent.testing.contract.bench import DRIVERS
from tests.contract.test_sqlite import SqliteWorld
from tests.stores.sqlite import test_store as test_sqlite_store
from tests.stores.sqlite.test_store import Machine


class Bug(NamedTuple):
    """`of` within the statement `name`, replaced."""

    name: str
    of: str
    by: str


CAUGHT_BY = {
    "a_stranger_cannot_renew": Bug("RENEW", "AND claim = ?3", "AND ?3 IS NOT NULL"),
    "a_renewal_with_another_token_is_refused": Bug("RENEW", "token = ?4", "?4 IS NOT NULL"),
    "a_renewal_after_the_end_brings_nothing_back": Bug("RENEW", "expires > ?5", "?5 IS NOT NULL"),
    "a_renewal_never_shortens_the_ttl": Bug("RENEW", "max(expires, ?1)", "?1"),
    "the_holder_is_told_of_a_pause": Bug("RENEW", "rest = x''", "rest IS NOT NULL"),
    "a_stranger_cannot_release": Bug("GIVE", "AND claim = ?", "AND ? IS NOT NULL"),
    "a_break_that_comes_too_late_spares_the_next_holder": Bug("GIVE", "token = ?", "? IS NOT NULL"),
    "the_history_names_holders_and_ends_in_order": Bug("GIVE", "ended = ?", "ended = 0 * ?"),
    "nobody_comes_before_one_that_asked_for_fairness": Bug(
        "GIVE", "due = ? + heartbeat", "due = 0 * ?"
    ),
    "the_history_is_bounded": Bug("ARCHIVE", "% 19", "% 21"),
    "an_unfair_waiter_is_overtaken_a_few_times_at_most": Bug(
        "GRANT", "overtaken = overtaken + (heartbeat > 0)", "overtaken = overtaken"
    ),
    "who_claimed_a_slot_can_give_it_back": Bug("REMOVE", "name = ?", "name = ? || 'x'"),
    "a_field_can_be_removed": Bug("REMOVE", "name = ?", "name = ? || 'x'"),
    "a_renewal_replaces_the_metadata_only_if_it_brings_some": Bug(
        "WRITE", "meta = excluded.meta", "meta = lease.meta"
    ),
    "a_fair_line_is_served_in_the_order_of_arrival": Bug(
        "SEE_LINE", "ORDER BY place", "ORDER BY place DESC"
    ),
    "the_first_has_its_turn_also_when_the_holder_died": Bug(
        "WRITE", "due = excluded.due", "due = 0"
    ),
    "readers_keep_a_writer_out_and_a_writer_keeps_readers_out": Bug(
        "WRITE", "rest = excluded.rest", "rest = x''"
    ),
}


CAUGHT_BY_OWN = {
    "tokens_grow_after_the_record_was_forgotten": Bug("SWEPT", "max(floor, ?)", "floor + 0 * ?"),
    "no_token_is_given_above_what_is_reserved": Bug("SEE", "s.reserved", "s.reserved + 100"),
    "a_field_keeps_its_record_for_as_long_as_it_stands": Bug(
        "SEE_SWEPT", "b.kind IN ('field', 'slot')", "b.kind = 'slot'"
    ),
    "nobody_waits_any_more_after_a_reboot": Bug("CLEAR_LINE", "key = ?", "key = ? || 'x'"),
    "a_renewal_that_comes_late_revives_nothing": Bug("RENEW", "expires > ?5", "expires >= ?5"),
}


def _run(folder: Path, case: str) -> None:
    folder.mkdir()
    world = SqliteWorld(folder / "leases.db")
    bench = Bench(world, DRIVERS["blocking"], ttl=10.0)
    try:
        getattr(StoreContract(), f"test_{case}")(bench)
    finally:
        bench.close()
        world.engine.store().close()


def _plant(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    statement = getattr(schema, bug.name)
    assert bug.of in statement
    monkeypatch.setattr(schema, bug.name, statement.replace(bug.of, bug.by))


@pytest.mark.parametrize("case", CAUGHT_BY)
def test_a_planted_bug_is_caught(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(tmp_path / "sound", case)
    _plant(CAUGHT_BY[case], monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        _run(tmp_path / "planted", case)


def _run_own(folder: Path, test: str) -> None:
    folder.mkdir()
    machine = Machine(folder / "leases.db")
    try:
        getattr(test_sqlite_store, f"test_{test}")(machine)
    finally:
        machine.store.close()


@pytest.mark.parametrize("test", CAUGHT_BY_OWN)
def test_a_planted_bug_is_caught_by_a_test_of_the_file(
    test: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run_own(tmp_path / "sound", test)
    _plant(CAUGHT_BY_OWN[test], monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        _run_own(tmp_path / "planted", test)
