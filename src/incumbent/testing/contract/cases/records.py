"""Cases: every name is its own record, and what people can read of it."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from incumbent.model import Ask, Granted, Key, Record
from incumbent.stores.table import HISTORY_KEPT
from incumbent.testing.contract.bench import Bench

__all__ = ["NameCases", "RecordCases"]


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
        assert bench.lasts(holding.remaining)

    def test_a_holding_never_shows_its_claim_in_a_log(self, bench: Bench) -> None:
        grant = bench.granted()
        assert grant.claim not in repr(bench.read())
        assert grant.claim not in repr(bench.refused())

    def test_the_history_names_holders_and_ends_in_order(self, bench: Bench) -> None:
        first = bench.granted(holder="alice")
        bench.give(first)
        second = bench.granted(holder="bob")
        past = bench.read().history
        assert [(one.holder, one.token) for one in past] == [
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
        assert [one.holder for one in bench.read().history] == ["alice"]

    def test_the_history_is_bounded(self, bench: Bench) -> None:
        for index in range(HISTORY_KEPT + 5):
            bench.give(bench.granted(holder=f"h{index}"))
        history = bench.read().history
        assert [one.holder for one in history] == [f"h{index + 5}" for index in range(HISTORY_KEPT)]
        assert all(past.ended is not None for past in history)

    def test_a_holding_that_expired_stays_in_the_history(self, bench: Bench) -> None:
        bench.expired(holder="alice")
        assert [one.holder for one in bench.read().history] == ["alice"]

    def test_reading_and_scanning_say_the_same(self, bench: Bench) -> None:
        grant = bench.granted("a", holder="alice")
        bench.give(grant, "a")
        bench.granted("b", holder="bob")
        records = bench.store.scan(bench.namespace, "", bench.until())
        shown = {one.key.name: [past.holder for past in one.history] for one in records}
        assert shown == {"a": ["alice"], "b": ["bob"]}
        assert [len(bench.read(name).history) for name in ("a", "b")] == [1, 1]


_ALIKE = (
    *("a", "A", "a.", "a-", "a_", "a:", "a/", "a@", "-a", ".a", "/a", "@a", ":a", "_a"),
    *("a.b", "a-b", "a_b", "a:b", "a/b", "a@b", "ab", "aB", "a//b", "a::b", "a:/b", "a/:b"),
    *("a/b/c", "a:b:c", "a/b:c", "a:b/c", "a-2Fb", "a_2Fb", "a.2Fb", "0", "00", "0.0", "-1"),
    *("pause", "a:pause", "a/pause", "a:token", "a:h", "a:f", "a:s", "a:history", "a:slots"),
    *("x" * 199, "x" * 200, "/" * 200, "x" * 100 + "/" + "x" * 99),
)
"""Names that a careless encoding maps to one key, or to another name's fields."""

_SPACES = ("", ".a", "-a", "_a", ".a.b", "A", "a")


class NameCases:
    """The encoding of names is injective."""

    def test_names_that_look_alike_are_different_leases(self, bench: Bench) -> None:
        grants = {name: bench.granted(name, holder=f"of {name}") for name in _ALIKE}
        for name, grant in grants.items():
            (holding,) = bench.read(name).holdings
            assert (holding.claim, holding.holder) == (grant.claim, f"of {name}")
        assert bench.scan() == sorted(_ALIKE)

    def test_namespaces_that_look_alike_are_apart(self, bench: Bench) -> None:
        keys = [
            Key(bench.namespace + space, name) for space in _SPACES for name in ("a", "a/b", "b")
        ]
        for key in keys:
            outcome = bench.store.take(key, bench.draw(), Ask(bench.long, str(key)), bench.until())
            assert isinstance(outcome, Granted)
        for key in keys:
            assert bench.store.read(key, bench.until()).holdings[0].holder == str(key)

    def test_a_scan_stays_in_its_namespace(self, bench: Bench) -> None:
        for space in _SPACES:
            key = Key(bench.namespace + space, f"of{space}")
            bench.store.take(key, bench.draw(), Ask(bench.long, "x"), bench.until())
        assert bench.scan() == ["of"]

    def test_a_scan_finds_what_begins_with_its_prefix(self, bench: Bench) -> None:
        for name in ("a", "a/b", "a/b/c", "a:b", "ab", "b/a", "A/b"):
            bench.granted(name)
        assert bench.scan("a/") == ["a/b", "a/b/c"]
        assert bench.scan("a") == ["a", "a/b", "a/b/c", "a:b", "ab"]
        assert bench.scan("c") == []

    def test_a_prefix_is_text_and_not_a_pattern(self, bench: Bench) -> None:
        for name in ("a.b", "a_b", "axb", "a-b"):
            bench.granted(name)
        assert bench.scan("a.") == ["a.b"]
        assert bench.scan("a_") == ["a_b"]
        assert [bench.scan(wild) for wild in ("*", "a*", "a%", "%", "a?b", "[a]")] == [[]] * 6

    def test_a_scan_finds_all_of_many(self, bench: Bench) -> None:
        names = sorted(f"job-{index}" for index in range(150))
        for name in names:
            bench.granted(name)
        assert bench.scan() == names
