"""Cases: every name is its own lease, however alike two of them look to the store."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from incumbent.model import Ask, Granted, Key
from incumbent.testing.contract.bench import Bench

__all__ = ["NameCases"]

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
