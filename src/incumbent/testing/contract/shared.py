"""Cases: a lease that several holders share, each with its own claim; and the line for it."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from incumbent.errors import StoreError
from incumbent.model import UNLIMITED, Gone, Granted, Queued, Refused, Released, Renewed
from incumbent.rules.notices import BREAK, RESIGN, encode_notice
from incumbent.testing.contract.bench import Bench, needs
from incumbent.testing.contract.waits import (
    HINTED_WITHIN,
    PATIENCE,
    ask_in_line,
    held_with_line,
    line_of,
    queued,
    served,
    wait_in_line,
)

_PERMITS = 3


def _full(bench: Bench, permits: int = 2) -> list[Granted]:
    """Take all permits."""
    return [bench.granted(permits=permits) for _ in range(permits)]


@needs("shared")
class SharedCases:
    """A shared lease has at most as many holders as permits, each with its own ttl and token."""

    def test_as_many_hold_it_as_there_are_permits_and_no_more(self, bench: Bench) -> None:
        grants = _full(bench, _PERMITS)
        assert bench.refused(permits=_PERMITS).reason == "held"
        bench.give(grants[1])
        bench.granted(permits=_PERMITS)
        bench.refused(permits=_PERMITS)

    def test_holders_who_come_and_go_are_never_too_many(self, bench: Bench) -> None:
        inside, counted, most = set[int](), Lock(), 0

        def work(mine: Bench, index: int) -> None:
            nonlocal most
            for _ in range(12):
                outcome = mine.take(permits=2)
                if not isinstance(outcome, Granted):
                    continue
                with counted:
                    inside.add(index)
                    most = max(most, len(inside))
                with counted:
                    inside.discard(index)
                assert mine.give(outcome) == Released()

        bench.in_threads(4, work)
        assert most <= 2
        assert bench.read().holdings == ()

    def test_every_reader_is_let_in(self, bench: Bench) -> None:
        for _ in range(5):
            bench.granted(permits=UNLIMITED)
        assert len(bench.read().holdings) == 5

    def test_readers_keep_a_writer_out_and_a_writer_keeps_readers_out(self, bench: Bench) -> None:
        readers = [bench.granted(permits=UNLIMITED) for _ in range(2)]
        assert bench.refused().reason == "held"
        bench.give(readers[0])
        assert bench.refused().reason == "held"
        bench.give(readers[1])
        writer = bench.granted()
        assert bench.refused(permits=UNLIMITED).reason == "held"
        bench.give(writer)
        bench.granted(permits=UNLIMITED)

    def test_each_holder_has_a_token_of_its_own_that_grows(self, bench: Bench) -> None:
        tokens = [grant.token for grant in _full(bench, _PERMITS)]
        assert tokens == sorted(set(tokens))

    def test_a_writer_has_a_larger_token_than_every_reader_before_it(self, bench: Bench) -> None:
        readers = [bench.granted(permits=UNLIMITED) for _ in range(3)]
        for grant in readers:
            bench.give(grant)
        writer = bench.granted()
        assert writer.token > max(grant.token for grant in readers)
        bench.give(writer)
        assert bench.granted(permits=UNLIMITED).token > writer.token

    def test_another_number_of_permits_is_refused_with_the_one_in_use(self, bench: Bench) -> None:
        grant = bench.granted(permits=4, holder="alice")
        refusal = bench.refused(permits=6)
        assert (refusal.reason, refusal.permits) == ("permits", 4)
        assert [one.holder for one in refusal.holders] == ["alice"]
        assert bench.refused(permits=UNLIMITED).reason == "permits"
        assert not isinstance(refusal, Queued)
        bench.give(grant)
        bench.granted(permits=6)

    def test_a_repeated_take_is_the_same_grant_and_uses_no_other_permit(self, bench: Bench) -> None:
        first = bench.granted(permits=2, ttl=bench.ttl)
        again = bench.granted(claim=first.claim, permits=2)
        assert (again.token, again.epoch) == (first.token, first.epoch)
        assert again.ttl > bench.long - 1
        bench.granted(permits=2)
        assert bench.refused(permits=2).reason == "held"

    def test_each_ends_with_its_own_ttl(self, bench: Bench) -> None:
        short = bench.granted(permits=2, ttl=bench.ttl)
        long = bench.granted(permits=2)
        bench.outlive(bench.ttl)
        assert [one.token for one in bench.read().holdings] == [long.token]
        assert bench.renew(short) == Gone()
        bench.granted(permits=2)
        bench.refused(permits=2)
        assert bench.give(short) == Gone()
        bench.refused(permits=2)
        assert bench.renew(long) == Renewed()

    def test_the_longest_ttl_keeps_others_out(self, bench: Bench) -> None:
        long = bench.granted(permits=UNLIMITED)
        bench.granted(permits=UNLIMITED, ttl=bench.ttl)
        bench.outlive(bench.ttl)
        assert bench.refused().reason == "held"
        bench.give(long)
        bench.granted()

    def test_a_renewal_keeps_one_of_them(self, bench: Bench) -> None:
        kept, left = (bench.granted(permits=2, ttl=bench.ttl) for _ in range(2))
        assert bench.renew(kept) == Renewed()
        bench.outlive(bench.ttl)
        assert bench.renew_all([bench.renewal(kept), bench.renewal(left)]) == [Renewed(), Gone()]
        assert [one.token for one in bench.read().holdings] == [kept.token]
        assert bench.refused().reason == "held"

    def test_renewals_of_both_kinds_go_together(self, bench: Bench) -> None:
        mine, ours = bench.granted("mine"), bench.granted("ours", permits=2)
        batch = [bench.renewal(mine, "mine"), bench.renewal(ours, "ours")]
        assert bench.renew_all(batch) == [Renewed(), Renewed()]
        assert bench.renew_all(batch[::-1]) == [Renewed(), Renewed()]

    def test_who_left_is_gone_while_others_hold_it(self, bench: Bench) -> None:
        one, other = _full(bench)
        assert [bench.give(one), bench.give(one)] == [Released(), Gone()]
        assert bench.renew(one) == Gone()
        assert bench.renew(other) == Renewed()

    def test_a_stranger_can_neither_renew_nor_release(self, bench: Bench) -> None:
        grant = bench.granted(permits=2)
        for stranger in (
            Granted(grant.claim, grant.token + 1, grant.ttl, grant.epoch),
            Granted(bench.draw(), grant.token, grant.ttl, grant.epoch),
        ):
            bench.shares(stranger.claim)
            assert bench.renew(stranger) == Gone()
            assert bench.give(stranger) == Gone()
        assert bench.renew(grant) == Renewed()

    def test_a_claim_that_is_given_up_leaves_its_permit(self, bench: Bench) -> None:
        one, _ = _full(bench)
        assert bench.give_up(one.claim) == Released()
        bench.granted(permits=2)

    def test_a_record_names_each_of_them(self, bench: Bench) -> None:
        bench.granted(permits=2, holder="alice", meta=b"hers")
        bench.granted(permits=2, holder="bob")
        holdings = sorted(bench.read().holdings, key=lambda one: one.token)
        assert [(one.holder, one.permits, one.meta) for one in holdings] == [
            ("alice", 2, b"hers"),
            ("bob", 2, b""),
        ]
        assert all(bench.lasts(one.remaining) and bench.lasts(one.ttl) for one in holdings)
        assert bench.scan() == ["job"]

    def test_the_history_names_each_of_them_and_its_end(self, bench: Bench) -> None:
        one, other = _full(bench)
        bench.give(one)
        past = {it.token: it.ended for it in bench.read().history}
        assert past.keys() == {one.token, other.token}
        assert past[one.token] is not None
        assert past[other.token] is None

    def test_a_refusal_names_nobody_who_has_left(self, bench: Bench) -> None:
        bench.granted(permits=2, holder="alice")
        bench.give(bench.granted(permits=2, holder="bob"))
        assert [one.holder for one in bench.refused().holders] == ["alice"]

    @needs("candidates")
    def test_a_candidate_with_another_number_of_permits_is_listed(self, bench: Bench) -> None:
        bench.granted(permits=2)
        bench.refused(permits=3, holder="bob", candidacy=bench.long)
        assert [one.holder for one in bench.read().candidates] == ["bob"]

    def test_an_exclusive_lease_is_no_shared_one(self, bench: Bench) -> None:
        grant = bench.granted()
        assert bench.refused(permits=1).reason == "held"
        (holding,) = bench.read().holdings
        assert holding.permits is None
        assert bench.give(grant) == Released()

    @needs("notices")
    def test_a_pause_lets_nobody_in_and_tells_all_of_them(self, bench: Bench) -> None:
        grants = _full(bench, _PERMITS)[:2]
        bench.pause()
        for grant in grants:
            answer = bench.renew(grant)
            assert isinstance(answer, Renewed)
            assert [notice.kind for notice in answer.notices] == ["pause"]
            bench.give(grant)
        assert bench.refused(permits=_PERMITS).reason == "paused"

    @needs("notices")
    def test_all_who_share_it_are_asked_to_go_and_nobody_who_comes_later(
        self, bench: Bench
    ) -> None:
        one, other = (bench.granted(permits=_PERMITS) for _ in range(2))
        notice = encode_notice(who="operator", kind=BREAK, through_token=other.token)
        bench.put(RESIGN, notice)
        later = bench.granted(permits=_PERMITS)
        answers = bench.renew_all([bench.renewal(grant) for grant in (one, other, later)])
        told = [[notice.kind for notice in getattr(it, "notices", ())] for it in answers]
        assert told == [["break"], ["break"], []]
        for grant in (one, other, later):
            bench.give(grant)
        assert bench.renew(bench.granted(permits=_PERMITS)) == Renewed()
        assert "resign" not in bench.read().fields

    def test_a_hundred_permits_are_counted(self, bench: Bench) -> None:
        grants = _full(bench, 100)
        assert bench.refused(permits=100).reason == "held"
        assert bench.renew_all([bench.renewal(grant) for grant in grants]) == [Renewed()] * 100
        bench.give(grants[50])
        bench.granted(permits=100)

    def test_a_waiter_hears_of_a_permit(self, bench: Bench) -> None:
        one, _ = _full(bench)
        seen = bench.refused(permits=2).seen
        bench.give(one)
        assert bench.waited(seen, PATIENCE) < HINTED_WITHIN


@needs("shared", "queue")
class SharedLineCases:
    """Waiters for a shared lease and for an exclusive one stand in the same line."""

    def test_a_permit_goes_to_the_first_in_line(self, bench: Bench) -> None:
        one, _ = _full(bench)
        first, second = bench.draw(), bench.draw()
        assert [queued(bench, claim, permits=2).place for claim in (first, second)] == [0, 1]
        bench.give(one)
        assert bench.refused(permits=2).reason == "turn"
        assert queued(bench, second, permits=2).reason == "turn"
        served(bench, first, permits=2)
        assert queued(bench, second, permits=2).place == 0

    def test_two_permits_go_to_the_first_two(self, bench: Bench) -> None:
        one, other = _full(bench)
        first, second = line_of(bench, 2, permits=2)
        bench.give(one)
        bench.give(other)
        for claim in (first, second):
            served(bench, claim, permits=2)

    def test_readers_who_come_later_let_a_writer_pass(self, bench: Bench) -> None:
        reader = bench.granted(permits=UNLIMITED)
        (writer,), later = line_of(bench, 1), bench.draw()
        assert queued(bench, later, permits=UNLIMITED).reason == "turn"
        assert bench.refused(permits=UNLIMITED).reason == "turn"
        assert bench.renew(reader) == Renewed()
        bench.give(reader)
        grant = served(bench, writer)
        assert queued(bench, later, permits=UNLIMITED).reason == "held"
        bench.give(grant)
        served(bench, later, permits=UNLIMITED)

    def test_all_readers_at_the_head_of_the_line_have_their_turn(self, bench: Bench) -> None:
        grant, readers = held_with_line(bench, 3, permits=UNLIMITED)
        (writer,) = line_of(bench, 1)
        bench.give(grant)
        for claim in readers:
            served(bench, claim, permits=UNLIMITED)
        assert queued(bench, writer).reason == "held"
        assert bench.refused(permits=UNLIMITED).reason == "turn"

    def test_a_writer_who_leaves_the_line_lets_readers_in(self, bench: Bench) -> None:
        bench.granted(permits=UNLIMITED)
        (writer,) = line_of(bench, 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait_in_line, bench, permits=UNLIMITED)
            time.sleep(0.1)
            bench.give_up(writer)
            assert waiting.result() < 2 * HINTED_WITHIN < PATIENCE

    def test_a_waiter_with_another_number_of_permits_keeps_its_place_until_it_leaves(
        self, bench: Bench
    ) -> None:
        grant, (first,) = held_with_line(bench, 1, permits=4)
        (second,) = line_of(bench, 1, permits=2)
        bench.give(grant)
        shared = served(bench, first, permits=4)
        refusal = ask_in_line(bench, second, permits=2)
        assert isinstance(refusal, Refused)
        assert refusal.reason == "permits"
        bench.give(shared)
        assert bench.refused(permits=4).reason == "turn"
        bench.give_up(second)
        bench.granted(permits=4)

    def test_the_next_one_who_may_share_is_told_of_a_grant(self, bench: Bench) -> None:
        grant, (first,) = held_with_line(bench, 1, permits=UNLIMITED)
        second = bench.draw()
        seen = queued(bench, second, permits=UNLIMITED).seen
        bench.give(grant)
        served(bench, first, permits=UNLIMITED)
        assert bench.waited(seen, PATIENCE) < HINTED_WITHIN
        served(bench, second, permits=UNLIMITED)


class SharedFaultCases:
    """A shared lease after a lost answer, and after a take that came too late."""

    @needs("shared", "lose_reply")
    def test_a_shared_take_whose_answer_was_lost_is_the_same_grant_again(
        self, bench: Bench
    ) -> None:
        claim = bench.unheard(permits=2)
        grant = bench.granted(claim=claim, permits=2)
        bench.granted(permits=2)
        assert bench.refused(permits=2).reason == "held"
        assert bench.give(grant) == Released()

    @needs("shared", "refuses_late")
    def test_a_shared_take_that_arrives_after_its_claim_was_given_up_brings_nothing(
        self, bench: Bench
    ) -> None:
        claim = bench.draw()
        bench.shares(claim)
        assert bench.give_up(claim) == Gone()
        assert not isinstance(_answer(bench, claim), Granted)
        assert bench.read().holdings == ()

    @needs("shared", "refuses_late")
    def test_nothing_comes_back_of_a_permit_that_was_given_up(self, bench: Bench) -> None:
        grant = bench.granted(permits=2)
        assert bench.give_up(grant.claim) == Released()
        assert not isinstance(_answer(bench, grant.claim), Granted)
        assert bench.read().holdings == ()


def _answer(bench: Bench, claim: str) -> object:
    try:
        return bench.take(claim=claim, permits=2)
    except StoreError as error:
        return error
