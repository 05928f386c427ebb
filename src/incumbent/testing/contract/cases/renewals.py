"""Cases: renewal extends what is there and nothing else, and tokens only grow."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from itertools import pairwise

from incumbent.model import Gone, Granted, Refused, Released, Renewed
from incumbent.testing.contract.bench import Bench
from incumbent.testing.contract.marks import needs

__all__ = ["RenewalCases", "TokenCases"]


class RenewalCases:
    """Set max(remaining, ttl) for a claim that still holds; never create, never shorten."""

    def test_a_renewal_extends_the_lease(self, bench: Bench) -> None:
        grant = bench.granted(ttl=bench.ttl)
        bench.world.pass_time(bench.ttl / 4)
        if bench.renew(grant, ttl=bench.ttl) == Renewed():
            assert bench.remaining() > bench.ttl * 0.5 or bench.read().holdings == ()

    @needs("ttl_change")
    def test_a_renewal_may_ask_for_a_longer_ttl(self, bench: Bench) -> None:
        grant = bench.granted(ttl=bench.ttl)
        assert bench.renew(grant, ttl=bench.long) == Renewed()
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
        assert (holding.holder, holding.token, holding.claim) == (
            "alice",
            grant.token,
            grant.claim,
        )


@needs("fencing")
class TokenCases:
    """A resource that compares tokens must never see a later holder with a smaller one."""

    def test_the_token_is_a_positive_number_that_json_and_lua_can_hold(self, bench: Bench) -> None:
        assert 0 < bench.granted().token < 2**53

    def test_the_token_grows_with_every_release(self, bench: Bench) -> None:
        tokens = [self._one_turn(bench) for _ in range(10)]
        assert all(earlier < later for earlier, later in pairwise(tokens))

    @staticmethod
    def _one_turn(bench: Bench) -> int:
        grant = bench.granted()
        bench.give(grant)
        return grant.token

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
        (seen,) = self._holdings_of(bench, bench.granted(claim=claim))
        bench.give(Granted(claim, seen.token, 0))
        bench.granted(claim=claim)
        assert bench.store.give(bench.key(), claim, seen.token, bench.until()) == Gone()
        bench.refused()

    @staticmethod
    def _holdings_of(bench: Bench, grant: Granted) -> list[Granted]:
        return [Granted(one.claim, one.token, grant.ttl) for one in bench.read().holdings]

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
