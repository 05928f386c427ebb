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
    "a_stranger_cannot_renew": Bug("RENEW", "AND claim = ?4 AND", "AND ?4 IS NOT NULL AND"),
    "a_renewal_with_another_token_is_refused": Bug("RENEW", "token = ?5", "?5 IS NOT NULL"),
    "a_renewal_after_the_end_brings_nothing_back": Bug("RENEW", "expires > ?6", "?6 IS NOT NULL"),
    "a_renewal_never_shortens_the_ttl": Bug("RENEW", "max(expires, ?1)", "?1"),
    "a_renewal_replaces_the_metadata_only_if_it_brings_some": Bug(
        "RENEW", "coalesce(?2, meta)", "coalesce(?2, x'')"
    ),
    "a_renewal_that_changes_nothing_is_no_change": Bug(
        "RENEW", "changes + (?2 IS NOT NULL AND ?2 IS NOT meta)", "changes + 1"
    ),
    "a_stranger_cannot_release": Bug("GIVE", "AND claim = ?", "AND ? IS NOT NULL"),
    "a_break_that_comes_too_late_spares_the_next_holder": Bug(
        "GIVE", "token = coalesce(?, token)", "coalesce(?, token) IS NOT NULL"
    ),
    "a_second_release_answers_gone": Bug("GIVE", "SET claim = NULL, expires = 0", "SET ended = 0"),
    "a_released_lease_is_free_at_once": Bug("GIVE", "claim = NULL, expires = 0", "claim = ''"),
    "the_history_names_holders_and_ends_in_order": Bug("GIVE", "ended = ?", "ended = NULL + ?"),
    "who_claimed_a_slot_can_give_it_back": Bug("GIVE_SLOT", "name = ?", "name = ? || 'x'"),
    "nobody_else_can_give_a_slot_back": Bug("GIVE_SLOT", "AND claim = ?", "AND ? IS NOT NULL"),
    "a_repeated_take_raises_the_ttl_to_what_it_asks": Bug(
        "REPEAT", "expires = ?", "expires = max(expires, 0 * ?)"
    ),
    "a_closed_name_opens_by_itself": Bug("GIVE", "closed_until = ?", "closed_until = 2 * ?"),
    "the_history_is_bounded": Bug("ARCHIVE", "grants % 19", "grants % 21"),
    "the_token_grows_with_every_release": Bug("GRANT", "token = excluded.token", "token = 0"),
    "a_grant_ends_the_own_candidacy_only": Bug("STAND_DOWN", "AND holder = ?", "AND ? IS NOT NULL"),
    "the_list_of_candidates_is_bounded": Bug("CROWD_OUT", "LIMIT ?4", "LIMIT 10 * ?4"),
    "a_candidacy_ends_when_its_time_is_over": Bug("SEE_CANDIDATES", "expires > ?", "? IS NOT NULL"),
    "a_reservation_refuses_everybody_else": Bug(
        "RESERVE", "SELECT key, ?, token", "SELECT key, ?, token - 1"
    ),
    "a_version_never_comes_back": Bug("TOUCH", "version = excluded.version", "version = 0"),
    "the_holder_is_told_of_a_pause": Bug("TOUCH", "max(switched, excluded.switched)", "switched"),
    "a_field_can_be_removed": Bug("DROP_FIELD", "name = ?", "name = ? || 'x'"),
    "a_fair_line_is_served_in_the_order_of_arrival": Bug(
        "JOIN_LINE", "1 + coalesce(max(place), 0)", "-coalesce(count(*), 0)"
    ),
    "who_leaves_the_line_is_not_waited_for": Bug("LEAVE_LINE", "AND claim = ?", "AND ? = 0"),
    "the_first_has_its_turn_also_when_the_holder_died": Bug("SET_TURN", "due = ?", "due = 0 * ?"),
    "an_unfair_waiter_is_overtaken_a_few_times_at_most": Bug(
        "SET_TURN", "overtaken = ?", "overtaken = 0 * ?"
    ),
    "nobody_comes_before_one_that_asked_for_fairness": Bug(
        "GIVE", "due = ? + lined", "due = 0 * ?"
    ),
    "as_many_hold_it_as_there_are_permits_and_no_more": Bug(
        "COUNT_SHARERS", "count(*)", "count(*) - 1"
    ),
    "each_ends_with_its_own_ttl": Bug("COUNT_SHARERS", "expires > ?", "? IS NOT NULL"),
    "readers_keep_a_writer_out_and_a_writer_keeps_readers_out": Bug(
        "GIVE_LATCH", "coalesce(s.last, 0)", "0 * coalesce(s.last, 0)"
    ),
    "a_renewal_keeps_one_of_them": Bug(
        "RENEW_LATCH", "max(lease.expires, ?1)", "max(lease.expires, 0 * ?1)"
    ),
    "who_left_is_gone_while_others_hold_it": Bug(
        "GIVE_SHARER", "expires > ?4", "expires > ?4 + 1e9"
    ),
    "a_stranger_can_neither_renew_nor_release": Bug("RENEW_LATCH", "s.token = ?5", "?5 > 0"),
    "the_history_names_each_of_them_and_its_end": Bug("END_PAST", "ended = ?", "ended = NULL + ?"),
    "a_permit_goes_to_the_first_in_line": Bug("GIVE_LATCH", "due = ?2 + lined", "due = 0 * ?2"),
}


CAUGHT_BY_OWN = {
    "tokens_grow_after_the_record_was_forgotten": Bug("SWEPT", "max(floor, ?)", "floor + 0 * ?"),
    "no_token_is_given_above_what_is_reserved": Bug("SEE", "s.reserved", "s.reserved + 100"),
    "what_still_means_something_is_not_forgotten": Bug(
        "SWEEP_LEASES", "AND closed_until <= :now", ""
    ),
    "a_field_keeps_its_record_for_as_long_as_it_stands": Bug(
        "SWEEP_LEASES", "AND NOT EXISTS (SELECT 1 FROM field WHERE field.key = lease.key)", ""
    ),
    "a_renewal_that_comes_late_revives_nothing": Bug("RENEW", "expires > ?6", "expires >= ?6"),
    "a_slot_is_open_to_the_claim_that_took_it": Bug("SEE_SLOT", "SELECT claim", "SELECT ''"),
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
