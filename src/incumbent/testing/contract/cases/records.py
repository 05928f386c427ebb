"""Cases: what people can read of a name; reading never changes anything."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from incumbent.model import Record
from incumbent.stores.table import HISTORY_KEPT
from incumbent.testing.contract.bench import Bench

__all__ = ["RecordCases"]


class RecordCases:
    """Who holds, who held, and for how long."""

    def test_a_name_that_nobody_ever_took_is_an_empty_record(self, bench: Bench) -> None:
        assert bench.read("unknown") == Record(bench.key("unknown"))

    def test_reading_creates_nothing(self, bench: Bench) -> None:
        bench.read("unknown")
        assert bench.scan() == []

    def test_a_namespace_that_nobody_ever_used_is_empty(self, bench: Bench) -> None:
        assert bench.scan() == []

    def test_a_record_shows_the_present_holder(self, bench: Bench) -> None:
        grant = bench.granted(holder="alice", meta=b"more")
        (holding,) = bench.read().holdings
        assert (holding.holder, holding.token, holding.claim, holding.meta, holding.foreign) == (
            "alice",
            grant.token,
            grant.claim,
            b"more",
            False,
        )
        assert holding.remaining is not None
        assert bench.long / 2 < holding.remaining <= bench.long + 1

    def test_a_holding_never_shows_its_claim_in_a_log(self, bench: Bench) -> None:
        grant = bench.granted()
        assert grant.claim not in repr(bench.read())
        assert grant.claim not in repr(bench.refused())

    def test_the_history_names_holders_and_ends_in_order(self, bench: Bench) -> None:
        first = bench.granted(holder="alice")
        bench.give(first)
        second = bench.granted(holder="bob")
        past = bench.read().history
        assert [(it.holder, it.token) for it in past] == [
            ("alice", first.token),
            ("bob", second.token),
        ]
        assert past[0].ended is not None
        assert past[0].ended >= past[0].started > 0
        assert past[1].ended is None

    def test_a_repeated_take_is_one_holding_in_the_history(self, bench: Bench) -> None:
        first = bench.granted()
        bench.granted(claim=first.claim)
        bench.renew(first)
        assert len(bench.read().history) == 1

    def test_a_refused_take_is_not_in_the_history(self, bench: Bench) -> None:
        bench.granted(holder="alice")
        bench.refused()
        assert [it.holder for it in bench.read().history] == ["alice"]

    def test_the_history_is_bounded(self, bench: Bench) -> None:
        for index in range(HISTORY_KEPT + 5):
            bench.give(bench.granted(holder=f"h{index}"))
        history = bench.read().history
        assert [it.holder for it in history] == [f"h{index + 5}" for index in range(HISTORY_KEPT)]
        assert all(it.ended is not None for it in history)

    def test_a_holding_that_expired_stays_in_the_history(self, bench: Bench) -> None:
        bench.granted(holder="alice", ttl=bench.ttl)
        bench.outlive(bench.ttl)
        assert [it.holder for it in bench.read().history] == ["alice"]

    def test_reading_and_scanning_say_the_same(self, bench: Bench) -> None:
        grant = bench.granted("a", holder="alice")
        bench.give(grant, "a")
        bench.granted("b", holder="bob")
        records = bench.store.scan(bench.namespace, "", bench.until())
        shown = {it.key.name: [past.holder for past in it.history] for it in records}
        assert shown == {"a": ["alice"], "b": ["bob"]}
        assert [len(bench.read(name).history) for name in ("a", "b")] == [1, 1]
