"""Names in etcd's one key space: no two share a key, and none lies within another's range."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from incumbent.model import Key
from incumbent.stores.etcd.kv import KeyValue, Names, after, by_name, scan_ranges

LETTERS = "aA0._:/@-"
NAMES = st.text(LETTERS, min_size=1, max_size=8)
SPACES = st.text("aA0._-", min_size=1, max_size=4)
KEYS = st.builds(Key, SPACES, NAMES)
ANY = st.text(min_size=1, max_size=8)
SANE = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


def areas(names: Names) -> list[str]:
    return [names.contenders, names.switches, names.record]


@given(KEYS, KEYS)
def test_no_area_of_a_name_lies_within_an_area_of_another(one: Key, two: Key) -> None:
    for mine in areas(Names("/p", one)):
        for other in areas(Names("/p", two)):
            within = mine <= other < after(mine)
            assert within == (mine == other)
            assert not within or one == two


@given(KEYS, SANE.filter(lambda rest: rest != "closing"))
def test_what_is_under_a_name_is_read_back_as_its_own(key: Key, rest: str) -> None:
    names = Names("/p", key)
    for area, kind in zip(areas(names), ("/contender", "/switch", "f"), strict=True):
        part = quote(rest, safe="")
        entry = KeyValue(area + ("f/" if kind == "f" else "") + part, b"", 1, 1, "0")
        assert by_name("/p", key.namespace, [entry]) == {key: {kind: [(rest, entry)]}}


@given(KEYS, NAMES)
def test_a_scan_covers_exactly_the_names_with_its_prefix(key: Key, prefix: str) -> None:
    ranges = scan_ranges("/p", key.namespace, prefix)
    for area, (start, end) in zip(areas(Names("/p", key)), _sorted_by_area(ranges), strict=True):
        assert (start <= area < end) == key.name.startswith(prefix)


def _sorted_by_area(ranges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [next(it for it in ranges if mark(it[0]) == kind) for kind in ("", "!s", "!r")]


def mark(start: str) -> str:
    return next((kind for kind in ("!s", "!r") if f"{kind}/" in start), "")


@given(KEYS, ANY, ANY)
def test_slots_and_holders_of_any_text_are_apart(key: Key, one: str, two: str) -> None:
    try:
        one.encode(), two.encode()
    except UnicodeEncodeError:
        return
    names = Names("/p", key)
    assert (names.slot(one) == names.slot(two)) == (one == two)
    assert names.slot(two) == names.slot(one) or not names.slot(two).startswith(names.slot(one))
    assert (names.candidate(one) == names.candidate(two)) == (one == two)


def test_a_go_client_contends_under_the_plain_name() -> None:
    assert Names("/incumbent", Key("default", "nightly-report")).contenders == (
        "/incumbent/default/nightly-report/"
    )
    assert Names("/incumbent", Key("default", "a/b")).contenders == "/incumbent/default/a%2Fb/"
