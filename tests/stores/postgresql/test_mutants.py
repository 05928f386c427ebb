"""The contract suite sees what is wrong with a schema: each planted bug is caught by its case."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from incumbent.testing.contract import Bench, StoreContract
from incumbent.testing.contract.bench import DRIVERS
from tests.stores.postgresql.world import MovedWorld
from tests.support.postgresql import PostgresServer

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]

_AT = 1_800_000_000.0


def _instead(of: str, bug: str) -> Callable[[str], str]:
    def plant(schema: str) -> str:
        assert of in schema, of
        return schema.replace(of, bug)

    return plant


CAUGHT_BY = {
    "a_repeated_take_is_the_same_grant": _instead(
        "r.expires > now AND r.claim = p_claim THEN", "false THEN"
    ),
    "a_repeated_take_never_shortens_the_ttl": _instead(
        "expires = greatest(expires, now + p_ttl * us)", "expires = now + p_ttl * us"
    ),
    "a_renewal_never_shortens_the_ttl": _instead(
        "greatest(r.expires, now + a.ttl", "least('infinity', now + a.ttl"
    ),
    "a_renewal_after_the_end_brings_nothing_back": _instead(
        "r.token = a.token AND r.expires > now\n        RETURNING",
        "r.token = a.token\n        RETURNING",
    ),
    "a_stranger_cannot_renew": _instead(
        "r.key = a.key AND r.claim = a.claim AND", "r.key = a.key AND"
    ),
    "a_renewal_with_another_token_is_refused": lambda schema: schema.replace(
        "r.token = a.token AND", ""
    ).replace("USING (key, claim, token)", "USING (key, claim)"),
    "the_token_grows_with_every_release": _instead(
        "new_token := greatest(r.token + 1,",
        "new_token := greatest(r.token,",
    ),
    "a_stranger_cannot_release": _instead(
        "key = p_key AND claim = p_claim AND (p_token", "key = p_key AND (p_token"
    ),
    "a_break_that_comes_too_late_spares_the_next_holder": _instead(
        "(p_token IS NULL OR token = p_token)", "true"
    ),
    "a_paused_name_is_granted_to_nobody": _instead(
        "ELSIF r.switched AND EXISTS", "ELSIF false AND EXISTS"
    ),
    "a_version_guards_against_a_lost_update": _instead(
        "old IS DISTINCT FROM p_number", "old IS NULL"
    ),
    "who_lost_the_lease_cannot_write_by_its_claim": _instead(
        "r.claim = p_claim AND r.token = p_number AND r.expires > now)", "r.claim = p_claim)"
    ),
    "nobody_else_can_give_a_slot_back": _instead(
        "AND name = p_slot AND claim = p_claim;", "AND name = p_slot;"
    ),
    "a_reservation_refuses_everybody_else": _instead("r.reserved_for <> p_holder", "false"),
    "a_grant_ends_the_own_candidacy_only": _instead(
        "DELETE FROM incumbent.candidate WHERE key = p_key AND holder = p_holder;", ""
    ),
    "a_scan_stays_in_its_namespace": _instead(
        "starts_with(r.key, p_prefix)\n            AND r.key < p_prefix || chr(127)", "true"
    ),
    "the_history_is_bounded": _instead("r.grants % 19", "r.grants % 21"),
    "a_slot_is_claimed_once": _instead("AND expires > p_now AND claim <> p_claim", "AND false"),
    "a_slot_ends_when_its_time_is_over": _instead(
        "AND name = p_slot AND expires > p_now AND", "AND name = p_slot AND"
    ),
    "a_lost_answer_about_a_slot_is_asked_for_again": _instead(
        "r.expires > now AND r.claim = p_claim THEN", "false THEN"
    ),
    "the_claim_that_has_the_slot_may_take_the_lease_again": _instead(
        "AND expires > p_now AND claim <> p_claim;", "AND expires > p_now;"
    ),
    "who_claimed_a_slot_can_give_it_back": _instead(
        "DELETE FROM incumbent.slot WHERE key = p_key AND name = p_slot AND claim = p_claim;",
        "PERFORM 1;",
    ),
    "a_slot_can_be_given_back_after_the_lease_ended": _instead(
        "DELETE FROM incumbent.slot WHERE key = p_key AND name = p_slot AND claim = p_claim;",
        "DELETE FROM incumbent.slot s USING incumbent.record r WHERE s.key = p_key"
        " AND s.name = p_slot AND s.claim = p_claim AND r.key = p_key AND r.claim = p_claim"
        " AND r.expires > clock_timestamp();",
    ),
    "a_late_release_does_not_hit_the_next_holder": _instead(
        "key = p_key AND claim = p_claim AND (p_token IS NULL OR token = p_token)", "key = p_key"
    ),
    "a_version_never_comes_back": _instead(
        "next_version := greatest(r.field_version + 1,", "next_version := least(1,"
    ),
    "a_take_that_arrives_after_its_claim_was_given_up_brings_nothing": _instead(
        "PERFORM incumbent.give_up(p_key, p_claim);", "NULL;"
    ),
    "it_brings_nothing_after_a_ttl_either": _instead(
        "clock_timestamp() + life)\n        ON", "clock_timestamp() + life / 3600)\n        ON"
    ),
    "a_take_that_arrives_too_late_uses_no_slot": _instead(
        "IF EXISTS (SELECT FROM incumbent.given_up",
        "IF p_slot IS NULL AND EXISTS (SELECT FROM incumbent.given_up",
    ),
    "others_are_granted_meanwhile_and_keep_what_they_have": _instead(
        "WHERE key = p_key AND claim = p_claim AND until > now)", "WHERE key = p_key)"
    ),
    "as_many_hold_it_as_there_are_permits_and_no_more": _instead(
        "count(*) >= nullif(p_permits, 0)", "count(*) > nullif(p_permits, 0)"
    ),
    "each_ends_with_its_own_ttl": _instead(
        "WHERE key = r.key AND expires > p_now\n    ) c;", "WHERE key = r.key\n    ) c;"
    ),
    "readers_keep_a_writer_out_and_a_writer_keeps_readers_out": _instead(
        "expires = coalesce(last, '-infinity')", "expires = '-infinity'"
    ),
    "a_renewal_keeps_one_of_them": _instead(
        "SET expires = greatest(r.expires, d.last)", "SET expires = r.expires"
    ),
    "a_stranger_can_neither_renew_nor_release": _instead("s.token = a.token AND", ""),
    "the_history_names_each_of_them_and_its_end": _instead(
        "UPDATE incumbent.history SET ended = now WHERE",
        "UPDATE incumbent.history SET ended = NULL WHERE",
    ),
    "the_longest_ttl_keeps_others_out": _instead(
        "THEN greatest(expires, r.expires) ELSE expires END", "THEN expires ELSE expires END"
    ),
}


def _run(world: MovedWorld, case: str) -> None:
    bench = Bench(world, DRIVERS["blocking"], ttl=10.5)
    try:
        getattr(StoreContract(), f"test_{case}")(bench)
    finally:
        bench.close()
        world.engine.store().close()


@pytest.mark.parametrize("case", CAUGHT_BY)
def test_a_planted_bug_is_caught(case: str, postgres_server: PostgresServer) -> None:
    _run(MovedWorld(postgres_server, _AT), case)
    # Out of the block below: a bug that has no place in the schema is not caught.
    planted = MovedWorld(postgres_server, _AT, CAUGHT_BY[case])
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        _run(planted, case)
