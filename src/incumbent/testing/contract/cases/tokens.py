"""Cases: fencing tokens of one name only grow, whatever ended the holding before."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from itertools import pairwise

from incumbent.model import Gone, Granted, Refused, Released
from incumbent.testing.contract.bench import Bench
from incumbent.testing.contract.marks import needs

__all__ = ["TokenCases"]


class TokenCases:
    """A resource that compares tokens must never see a later holder with a smaller one."""

    @needs("fencing")
    def test_the_token_is_a_positive_number_that_json_and_lua_can_hold(self, bench: Bench) -> None:
        assert 0 < bench.granted().token < 2**53

    @needs("fencing")
    def test_the_token_grows_with_every_release(self, bench: Bench) -> None:
        tokens = [self._one_turn(bench) for _ in range(10)]
        assert all(earlier < later for earlier, later in pairwise(tokens))

    @staticmethod
    def _one_turn(bench: Bench) -> int:
        grant = bench.granted()
        bench.give(grant)
        return grant.token

    @needs("fencing")
    def test_the_token_grows_over_the_end_of_a_ttl(self, bench: Bench) -> None:
        first = bench.granted(ttl=bench.ttl)
        bench.outlive(bench.ttl)
        assert bench.granted().token > first.token

    @needs("fencing")
    def test_the_token_grows_over_a_break(self, bench: Bench) -> None:
        first = bench.granted()
        (seen,) = bench.read().holdings
        broken = bench.store.give(bench.key(), seen.claim, seen.token, bench.until())
        assert broken == Released()
        assert bench.granted().token > first.token
        assert bench.renew(first) == Gone()

    @needs("fencing")
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
        return [Granted(it.claim, it.token, grant.ttl) for it in bench.read().holdings]

    @needs("fencing")
    def test_the_token_grows_after_the_record_was_forgotten(self, bench: Bench) -> None:
        first = bench.granted(ttl=bench.ttl, keep_record=bench.ttl)
        bench.outlive(bench.ttl)
        assert bench.granted(keep_record=bench.ttl).token > first.token

    @needs("fencing")
    def test_the_token_grows_over_a_closed_name(self, bench: Bench) -> None:
        first = bench.granted()
        bench.give(first, closed_for=bench.ttl)
        bench.outlive(bench.ttl)
        assert bench.granted().token > first.token

    @needs("fencing")
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
