"""Names and namespaces: which there are, and that no two share a flat key."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent import clock
from incumbent.errors import ConfigError
from incumbent.model import Key
from incumbent.stores.names import NAME_MAX, check_name, flat, make_key, unflat
from tests.support.pace import took

NAMESPACE = string.ascii_letters + string.digits + "._-"
NAME = NAMESPACE + ":/@"

names = st.text(NAME, min_size=1, max_size=NAME_MAX).filter(lambda text: ".." not in text)
namespaces = st.text(NAMESPACE, min_size=1, max_size=63).filter(lambda text: ".." not in text)

BAD_ANYWHERE = [
    *("", "..", "a..b", "../etc", "a/..", "..."),
    *("a b", " a", "a ", "a\n", "\n", "a\x00", "\x00", "a\tb", "a\r\n"),
    *("ä", "ａ", "a\u200b", "日本", "٣", "a*", "a%", "a{b}", "a[0]", "a?b", "a#b", "a|b", "a\\b"),
    *('"a"', "'a'", "a;b", "a,b", "a=b", "a&b", "a+b", "$a", "~", "(a)", "<a>", "a!b", "`a`", "^"),
]
NOT_TEXT: list[object] = [None, 7, b"a", ["a"], ("a",), True, 1.5]


@pytest.mark.parametrize(
    "name", ["a", "Z", "0", ".", "-", "_", "/", ":", "@", "a.b/c:d@e-f_g", "x" * NAME_MAX]
)
def test_a_name_is_made_of_its_alphabet(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", [*BAD_ANYWHERE, "x" * (NAME_MAX + 1)])
def test_anything_else_is_refused_saying_what_a_name_is(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 200 characters") as caught:
        check_name(name)
    assert caught.value.name == "name"


@pytest.mark.parametrize("name", NOT_TEXT)
def test_what_is_no_text_is_no_name(name: object) -> None:
    with pytest.raises(ConfigError, match="is not a name"):
        check_name(name)


@pytest.mark.parametrize("unit", ["a", ".", "\x00", "é", "a/"])
def test_a_name_of_a_megabyte_is_refused_fast_and_briefly(unit: str) -> None:
    started = clock.now()
    with pytest.raises(ConfigError) as caught:
        check_name(unit * 1_000_000)
    assert took(started) < 1
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("namespace", [*BAD_ANYWHERE, "a/b", "a:b", "a@b", "/", "x" * 64])
def test_a_namespace_has_a_smaller_alphabet(namespace: str) -> None:
    with pytest.raises(ConfigError, match="1 to 63 characters") as caught:
        make_key(namespace, "job")
    assert caught.value.name == "namespace"


@pytest.mark.parametrize("namespace", NOT_TEXT)
def test_what_is_no_text_is_no_namespace(namespace: object) -> None:
    with pytest.raises(ConfigError, match="is not a namespace"):
        make_key(namespace, "job")


def test_a_bad_name_in_a_good_namespace_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        make_key("default", "a b")
    assert caught.value.name == "name"


def test_a_key_is_shown_as_its_namespace_and_name() -> None:
    assert str(make_key("billing", "invoice/7")) == "billing/invoice/7"


@given(namespaces, names)
def test_every_key_comes_back_from_its_flat_form(namespace: str, name: str) -> None:
    key = make_key(namespace, name)
    assert unflat(flat(key)) == key == Key(namespace, name)


@given(namespaces, names, namespaces, names)
def test_different_keys_have_different_flat_forms(a: str, b: str, c: str, d: str) -> None:
    assert (flat(make_key(a, b)) == flat(make_key(c, d))) is ((a, b) == (c, d))


@given(st.text(NAMESPACE + "/", min_size=3, max_size=6), st.integers(0, 5), st.integers(0, 5))
def test_a_text_that_is_cut_at_two_places_is_two_keys(text: str, one: int, two: int) -> None:
    """The near misses that random pairs never are: `a` + `b/c` and `a/b` + `c`."""
    found = dict[str, Key]()
    for cut in (one, two):
        try:
            key = make_key(text[:cut], text[cut:])
        except ConfigError:
            continue
        assert found.setdefault(flat(key), key) == key


@given(st.text(max_size=300))
def test_any_text_is_a_name_or_a_config_error(text: str) -> None:
    try:
        check_name(text)
    except ConfigError:
        return
    assert 1 <= len(text.encode()) <= NAME_MAX
    assert set(text) <= set(NAME)
    assert ".." not in text
