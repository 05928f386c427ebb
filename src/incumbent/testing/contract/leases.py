"""Cases: exclusion, expiry, release, the same take again, renewal, and tokens."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from threading import Lock

import pytest

from incumbent import clock
from incumbent.model import Gone, Granted, Refused, Released, Renewed
from incumbent.testing.contract.bench import Bench, needs

_TURNS = 4
_TRIES = 5
_GRANTED = 0.75
"""The share of the requested ttl that is granted at least. A store that keeps several leases in
one session may grant less than all; the holder believes no more than was granted."""


class LeaseCases:
    """A lease has one holder at a time, until its ttl is over, and no other claim ends it."""

    def test_a_free_lease_is_granted_and_echoes_its_claim(self, bench: Bench) -> None:
        claim = bench.draw()
        grant = bench.granted(claim=claim, ttl=bench.long)
        assert grant.claim == claim
        assert grant.ttl >= bench.long * _GRANTED

    def test_a_refusal_says_who_holds_the_lease_and_for_how_long(self, bench: Bench) -> None:
        grant = bench.granted(holder="alice")
        refusal = bench.refused()
        (holding,) = refusal.holders
        assert (refusal.reason, holding.holder, holding.token) == ("held", "alice", grant.token)
        assert bench.lasts(refusal.retry_after)

    def test_a_refused_take_changes_nothing(self, bench: Bench) -> None:
        grant = bench.granted(holder="alice", meta=b"hers")
        bench.refused()
        record = bench.read()
        (holding,) = record.holdings
        assert (holding.holder, holding.token, holding.meta) == ("alice", grant.token, b"hers")
        assert bench.give(grant) == Released()

    def test_contenders_take_turns_and_never_overlap(self, bench: Bench) -> None:
        inside, tokens = Lock(), list[int]()

        def work(mine: Bench, _: int) -> None:
            for _turn in range(_TURNS):
                grant = _wait_for(mine)
                assert inside.acquire(blocking=False), "two holders at once"
                tokens.append(grant.token)
                inside.release()
                assert mine.give(grant) == Released()

        bench.in_threads(3, work)
        assert len(tokens) == 3 * _TURNS

    def test_a_lease_ends_with_its_ttl(self, bench: Bench) -> None:
        old = bench.expired()
        new = bench.granted()
        assert bench.renew(old) == Gone()
        assert bench.give(old) == Gone()
        assert bench.renew(new) != Gone()

    def test_a_lease_is_held_for_all_of_its_ttl(self, bench: Bench) -> None:
        started = clock.now()
        bench.granted(ttl=bench.ttl)
        bench.world.pass_time(bench.ttl / 2)
        outcome = bench.take()
        # If the machine itself stood still for the other half, the store is not at fault.
        assert isinstance(outcome, Refused) or clock.now() - started >= bench.ttl

    def test_an_expired_lease_shows_no_holder(self, bench: Bench) -> None:
        bench.expired()
        assert bench.read().holdings == ()

    def test_a_released_lease_is_free_at_once(self, bench: Bench) -> None:
        assert bench.give(bench.granted()) == Released()
        assert bench.read().holdings == ()
        bench.granted()

    def test_a_stranger_cannot_release(self, bench: Bench) -> None:
        grant = bench.granted()
        stranger = Granted(bench.draw(), grant.token, grant.ttl, grant.epoch)
        assert bench.give(stranger) == Gone()
        assert bench.give_up(stranger.claim) == Gone()
        bench.refused()

    @needs("fencing")
    def test_a_release_with_another_token_is_refused(self, bench: Bench) -> None:
        grant = bench.granted()
        other = Granted(grant.claim, grant.token + 1, grant.ttl, grant.epoch)
        assert bench.give(other) == Gone()
        bench.refused()

    def test_a_release_without_a_token_needs_the_claim_only(self, bench: Bench) -> None:
        grant = bench.granted()
        assert bench.give_up(grant.claim) == Released()
        bench.granted()

    def test_a_second_release_answers_gone(self, bench: Bench) -> None:
        grant = bench.granted()
        assert [bench.give(grant), bench.give(grant)] == [Released(), Gone()]

    def test_a_release_of_what_never_was_answers_gone(self, bench: Bench) -> None:
        assert bench.give_up(bench.draw()) == Gone()
        assert bench.read().holdings == ()

    def test_a_release_of_what_was_removed_says_so(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.give_up(grant.claim)
        assert bench.give(grant) == Gone()
        bench.granted()

    def test_a_release_of_what_was_removed_says_so_while_another_holds_it(
        self, bench: Bench
    ) -> None:
        grant = bench.granted()
        bench.give_up(grant.claim)
        theirs = bench.granted()
        assert bench.give(grant, closed_for=bench.long) == Gone()
        assert bench.renew(theirs) == Renewed()
        assert bench.give(theirs) == Released()
        bench.granted()

    def test_a_late_release_does_not_hit_the_next_holder(self, bench: Bench) -> None:
        old = bench.expired()
        bench.granted()
        assert bench.give(old) == Gone()
        bench.refused()

    def test_a_release_can_keep_the_name_closed(self, bench: Bench) -> None:
        grant = bench.granted(holder="alice")
        assert bench.give(grant, closed_for=bench.long) == Released()
        refusal = bench.refused()
        assert refusal.reason == "closed"
        assert refusal.holders[0].holder == "alice"
        assert bench.lasts(refusal.retry_after)
        assert bench.refused(claim=grant.claim).reason == "closed"

    def test_a_closed_name_opens_by_itself(self, bench: Bench) -> None:
        bench.give(bench.granted(), closed_for=bench.ttl)
        assert 0 < bench.read().closed_for <= bench.ttl + 1
        bench.outlive(bench.ttl)
        assert bench.read().closed_for <= 0
        bench.granted()

    def test_the_shortest_and_the_longest_ttl_work(self, bench: Bench) -> None:
        limits = bench.world.engine.capabilities
        for name, ttl in (("short", limits.ttl_min), ("long", limits.ttl_max)):
            assert bench.granted(name, ttl=ttl).ttl >= ttl * _GRANTED
        assert limits.ttl_max * 0.9 < bench.remaining("long") <= limits.ttl_max + limits.ttl_unit

    def test_a_ttl_between_two_units_is_rounded_up(self, bench: Bench) -> None:
        odd = bench.ttl + bench.world.engine.capabilities.ttl_unit / 3
        started = clock.now()
        bench.granted(ttl=odd)
        left = bench.remaining()
        assert left + (clock.now() - started) >= odd - 1e-6

    def test_metadata_of_one_kibibyte_is_kept(self, bench: Bench) -> None:
        meta = bytes(range(256)) * 4
        bench.granted(meta=meta)
        assert bench.read().holdings[0].meta == meta

    def test_a_holder_may_have_any_name(self, bench: Bench) -> None:
        holder = 'Zoë "the\n\\ one": {host}|7,\t\x1f'
        bench.granted(holder=holder)
        assert bench.refused().holders[0].holder == holder
        assert bench.read().holdings[0].holder == holder


class RepeatCases:
    """A repeated take with the same claim is the same grant: its answer may have been lost."""

    def test_a_repeated_take_is_the_same_grant(self, bench: Bench) -> None:
        first = bench.granted()
        again = bench.granted(claim=first.claim)
        assert (again.token, again.epoch) == (first.token, first.epoch)

    def test_a_repeated_take_raises_the_ttl_to_what_it_asks(self, bench: Bench) -> None:
        first = bench.granted(ttl=bench.ttl)
        again = bench.granted(claim=first.claim, ttl=bench.long)
        assert again.ttl > bench.long - 1
        assert bench.remaining() > bench.long / 2
        bench.outlive(bench.ttl)
        bench.refused()

    def test_a_repeated_take_never_shortens_the_ttl(self, bench: Bench) -> None:
        first = bench.granted(ttl=bench.long)
        again = bench.granted(claim=first.claim, ttl=bench.ttl)
        assert again.ttl >= bench.ttl
        assert bench.remaining() > bench.long / 2
        bench.outlive(bench.ttl)
        bench.refused()

    def test_a_repeat_after_the_end_is_a_new_grant(self, bench: Bench) -> None:
        first = bench.expired()
        again = bench.granted(claim=first.claim)
        assert again.token > first.token
        assert bench.renew(first) == Gone()

    def test_a_repeat_after_somebody_else_came_is_refused(self, bench: Bench) -> None:
        first = bench.expired()
        bench.granted(holder="bob")
        assert bench.refused(claim=first.claim).holders[0].holder == "bob"


def _wait_for(bench: Bench) -> Granted:
    """Take as a waiter does: after a refusal, wait for a hint and try again."""
    claim, give_up = bench.draw(), clock.now() + 20
    while clock.now() < give_up:
        outcome = bench.take(claim=claim)
        if isinstance(outcome, Granted):
            return outcome
        assert isinstance(outcome, Refused)
        bench.store.wait_change(bench.key(), outcome.seen, clock.now() + 0.1)
    raise AssertionError("a waiter never got its turn")


class RenewalCases:
    """A renewal sets max(remaining, ttl) if the claim still holds; it never creates a lease."""

    def test_a_renewal_extends_the_lease(self, bench: Bench) -> None:
        grant = bench.granted(ttl=bench.ttl)
        bench.world.pass_time(bench.ttl / 4)
        started = clock.now()
        if bench.renew(grant, ttl=bench.ttl) == Renewed():
            left = bench.remaining()
            # On a busy machine the look may be too late to tell.
            assert left > bench.ttl * 0.5 or clock.now() - started > bench.ttl / 4

    @needs("ttl_change")
    def test_a_renewal_may_ask_for_a_longer_ttl(self, bench: Bench) -> None:
        # On a busy machine a renewal may come after the end of so short a lease.
        for _ in range(_TRIES):
            if bench.renew(bench.granted(ttl=bench.ttl), ttl=bench.long) == Renewed():
                break
        else:
            pytest.fail("no lease was renewed in time")
        bench.outlive(bench.ttl)
        bench.refused()

    @needs("ttl_change")
    def test_a_renewal_never_shortens_the_ttl(self, bench: Bench) -> None:
        grant = bench.granted(ttl=bench.long)
        assert bench.renew(grant, ttl=bench.ttl) == Renewed()
        assert bench.remaining() > bench.long / 2
        bench.outlive(bench.ttl)
        bench.refused()

    def test_a_renewal_never_creates_a_lease(self, bench: Bench) -> None:
        grant = bench.granted("other")
        made_up = Granted(bench.draw(), grant.token, grant.ttl, grant.epoch)
        assert bench.renew(made_up) == Gone()
        assert bench.read().holdings == ()
        assert bench.scan() == ["other"]

    def test_a_renewal_after_the_release_brings_nothing_back(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.give(grant)
        assert bench.renew(grant) == Gone()
        assert bench.read().holdings == ()
        bench.granted()

    def test_a_renewal_after_the_end_brings_nothing_back(self, bench: Bench) -> None:
        grant = bench.expired()
        assert bench.renew(grant) == Gone()
        assert bench.read().holdings == ()
        bench.granted()

    def test_a_renewal_does_not_reopen_a_closed_name(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.give(grant, closed_for=bench.long)
        assert bench.renew(grant) == Gone()
        assert bench.refused().reason == "closed"

    def test_a_stranger_cannot_renew(self, bench: Bench) -> None:
        grant = bench.granted(ttl=bench.ttl)
        stranger = Granted(bench.draw(), grant.token, grant.ttl, grant.epoch)
        assert bench.renew(stranger) == Gone()
        bench.outlive(bench.ttl)
        bench.granted()

    @needs("fencing")
    def test_a_renewal_with_another_token_is_refused(self, bench: Bench) -> None:
        grant = bench.granted()
        assert bench.renew(Granted(grant.claim, grant.token - 1, 1, grant.epoch)) == Gone()
        assert bench.renew(Granted(grant.claim, grant.token + 1, 1, grant.epoch)) == Gone()

    def test_a_batch_answers_each_in_order(self, bench: Bench) -> None:
        kept = [bench.granted(f"kept-{index}") for index in range(3)]
        given = bench.granted("given")
        bench.give(given, "given")
        stranger = Granted(bench.draw(), kept[0].token, 1, kept[0].epoch)
        outcomes = bench.renew_all([
            bench.renewal(given, "given"),
            bench.renewal(kept[0], "kept-0"),
            bench.renewal(stranger, "kept-1"),
            bench.renewal(kept[1], "kept-1"),
            bench.renewal(kept[2], "never"),
            bench.renewal(kept[2], "kept-2"),
        ])  # fmt: skip
        assert outcomes == [Gone(), Renewed(), Gone(), Renewed(), Gone(), Renewed()]

    @needs("ttl_change")
    def test_a_batch_gives_each_its_own_ttl(self, bench: Bench) -> None:
        short, long = bench.granted("a", ttl=bench.ttl), bench.granted("b", ttl=bench.ttl)
        bench.renew_all([
            bench.renewal(short, "a", ttl=bench.ttl),
            bench.renewal(long, "b", ttl=bench.long),
        ])  # fmt: skip
        assert bench.remaining("a") <= bench.ttl + 1
        assert bench.remaining("b") > bench.long / 2

    def test_a_batch_of_hundreds_is_answered_in_order(self, bench: Bench) -> None:
        grants = {f"n{index}": bench.granted(f"n{index}") for index in range(0, 200, 10)}
        some = next(iter(grants.values()))
        made_up = Granted(bench.draw(), some.token, some.ttl, some.epoch)
        names = [f"n{index}" for index in range(200)]
        outcomes = bench.renew_all([
            bench.renewal(grants.get(name, made_up), name) for name in names
        ])  # fmt: skip
        renewed = [name for name, one in zip(names, outcomes, strict=True) if one == Renewed()]
        assert renewed == list(grants)

    def test_an_empty_batch_has_no_answers(self, bench: Bench) -> None:
        assert bench.renew_all([]) == []

    def test_a_renewal_replaces_the_metadata_only_if_it_brings_some(self, bench: Bench) -> None:
        grant = bench.granted(meta=b"first")
        bench.renew(grant)
        assert bench.read().holdings[0].meta == b"first"
        bench.renew(grant, meta=b"second")
        assert bench.read().holdings[0].meta == b"second"

    def test_a_renewed_lease_keeps_its_token_and_its_holder(self, bench: Bench) -> None:
        grant = bench.granted(holder="alice")
        bench.renew(grant)
        (holding,) = bench.read().holdings
        assert (holding.holder, holding.token, holding.claim) == ("alice", grant.token, grant.claim)


@needs("fencing")
class TokenCases:
    """A resource that compares tokens must never see a later holder with a smaller one."""

    def test_the_token_is_a_positive_number_that_json_and_lua_can_hold(self, bench: Bench) -> None:
        assert 0 < bench.granted().token < 2**53

    def test_the_token_grows_with_every_release(self, bench: Bench) -> None:
        tokens = []
        for _ in range(10):
            grant = bench.granted()
            bench.give(grant)
            tokens.append(grant.token)
        assert tokens == sorted(set(tokens))

    def test_the_token_grows_over_the_end_of_a_ttl(self, bench: Bench) -> None:
        first = bench.expired()
        assert bench.granted().token > first.token

    def test_the_token_grows_over_a_break(self, bench: Bench) -> None:
        first = bench.granted()
        (seen,) = bench.read().holdings
        broken = bench.store.give(bench.key(), seen.claim, seen.token, bench.until())
        assert broken == Released()
        assert bench.granted().token > first.token
        assert bench.renew(first) == Gone()

    def test_a_break_that_comes_too_late_spares_the_next_holder(self, bench: Bench) -> None:
        claim = bench.draw()
        bench.give(bench.granted(claim=claim))
        bench.granted(claim=claim)
        (seen,) = bench.read().holdings
        broken = Granted(claim, seen.token, 0)
        bench.give(broken)
        bench.granted(claim=claim)
        assert bench.give(broken) == Gone()
        bench.refused()

    def test_the_token_grows_after_the_record_was_forgotten(self, bench: Bench) -> None:
        first = bench.expired(keep_record=bench.ttl)
        assert bench.granted(keep_record=bench.ttl).token > first.token

    def test_the_token_grows_over_a_closed_name(self, bench: Bench) -> None:
        first = bench.granted()
        bench.give(first, closed_for=bench.ttl)
        bench.outlive(bench.ttl)
        assert bench.granted().token > first.token

    def test_tokens_under_contention_are_all_different(self, bench: Bench) -> None:
        def turns(mine: Bench, _: int) -> list[int]:
            found = []
            for _turn in range(10):
                outcome = mine.take()
                if isinstance(outcome, Granted):
                    found.append(outcome.token)
                    mine.give(outcome)
                else:
                    assert isinstance(outcome, Refused)
            return found

        found = bench.in_threads(4, turns)
        tokens = [token for mine in found for token in mine]
        assert len(set(tokens)) == len(tokens) >= 1
        assert all(mine == sorted(mine) for mine in found)
