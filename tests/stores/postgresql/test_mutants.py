"""The contract suite sees what is wrong with a schema: each planted bug is caught by its case."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from incumbent.testing.contract import Bench, StoreContract
from incumbent.testing.contract.bench import DRIVERS
from tests import tiers
from tests.stores.postgresql.world import MovedWorld
from tests.support.postgresql import PostgresServer

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(180),
    pytest.mark.left(tiers.NET, "a_stranger_*", "the_token_*"),
]

_AT = 1_800_000_000.0


def _instead(of: str, bug: str) -> Callable[[str], str]:
    def plant(schema: str) -> str:
        assert of in schema, of
        return schema.replace(of, bug)

    return plant


CAUGHT_BY = {
    "a_renewal_never_shortens_the_ttl": _instead(
        "expires = greatest(r.expires, now + a.ttl)", "expires = now + a.ttl"
    ),
    "a_renewal_after_the_end_brings_nothing_back": _instead(
        "r.token = a.token AND r.expires > now", "r.token = a.token"
    ),
    "a_stranger_cannot_renew": _instead(
        "r.key = a.key AND r.claim = a.claim AND", "r.key = a.key AND"
    ),
    "a_renewal_with_another_token_is_refused": _instead("AND r.token = a.token AND", "AND"),
    "the_holder_is_told_of_a_pause": _instead("AND NOT r.noticed AND", "AND"),
    "the_token_grows_with_every_release": _instead(
        "new_token := greatest(r.token + 1,",
        "new_token := greatest(r.token,",
    ),
    "a_stranger_cannot_release": _instead(
        "key = p_key AND claim = p_claim AND token", "key = p_key AND token"
    ),
    "a_break_that_comes_too_late_spares_the_next_holder": _instead(
        "AND token = p_token AND expires", "AND expires"
    ),
    "a_late_release_does_not_hit_the_next_holder": _instead(
        "claim = p_claim AND token = p_token AND", ""
    ),
    "a_paused_name_is_granted_to_nobody": _instead("r.rest <> '' AND NOT (", "false AND NOT ("),
    "a_reservation_refuses_everybody_else": _instead("r.rest <> '' AND NOT (", "false AND NOT ("),
    "a_take_that_arrives_after_its_claim_was_given_up_brings_nothing": _instead(
        "r.rest <> '' AND NOT (", "false AND NOT ("
    ),
    "nobody_comes_before_one_that_asked_for_fairness": _instead("AND NOT r.next_fair", ""),
    "an_unfair_waiter_is_overtaken_a_few_times_at_most": _instead(
        "r.overtaken < 4", "r.overtaken < 5"
    ),
    "a_fair_line_is_served_in_the_order_of_arrival": _instead(
        "ORDER BY j.place)", "ORDER BY j.place DESC)"
    ),
    "a_scan_stays_in_its_namespace": _instead(
        "starts_with(key, p_prefix)\n            AND key < p_prefix || chr(127)", "true"
    ),
    "the_history_is_bounded": _instead("(r.granted - 1) % 19", "(r.granted - 1) % 21"),
    "a_slot_ends_when_its_time_is_over": _instead(
        "it ->> 1, p_now, p_now + (it", "it ->> 1, p_now + 100000000, p_now + (it"
    ),
    "who_claimed_a_slot_can_give_it_back": _instead(
        "kind = it ->> 0 AND name = it ->> 1 OR", "false OR"
    ),
    "each_ends_with_its_own_ttl": _instead("written = now, token", "written = 0, token"),
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
