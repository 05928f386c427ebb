"""`safe_name`: any texts, one name for each, and a person can read it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import incumbent
from incumbent import ConfigError, safe_name
from incumbent.stores.names import NAME_MAX, check_name

# What matters is dense in them: signs of escapes, separators, dots, letters of other scripts.
texts = st.text(st.sampled_from(".@-:/_aZ09 ü\ud800\U0001f600") | st.characters(), max_size=12)
several = st.lists(texts, min_size=1, max_size=4).map(tuple)


def parts_of(name: str) -> tuple[str, ...]:
    """Undo `safe_name`, where nothing was cut: what can be undone is injective."""
    return tuple(map(undone, name.split(":")))


def undone(part: str) -> str:
    made, rest = b"", part
    while rest:
        if rest.startswith("@-"):
            digits, _, rest = rest[2:].partition("-")
            made += bytes.fromhex(digits)
        else:
            made, rest = made + rest[0].encode(), rest[1:]
    return made.decode("utf-8", "surrogatepass")


@given(several)
@example(("",))
@example(("", ""))
@example(("a:b",))
@example(("a", "b"))
@example(("a@", "-b"))
@example(("...",))
@example(("@-20-",))
def test_it_is_a_name_and_can_be_undone(parts: tuple[str, ...]) -> None:
    name = safe_name(*parts)
    assert check_name(name) == name
    assert len(name) <= NAME_MAX
    if "@-@" not in name:
        assert parts_of(name) == parts


@given(st.text(st.sampled_from("abcü:@-."), min_size=190, max_size=230))
def test_what_is_cut_is_never_mistaken_for_what_is_not(text: str) -> None:
    name = safe_name(text)
    assert check_name(name) == name
    assert len(name) <= NAME_MAX
    assert ("@-@" in name) or parts_of(name) == (text,)
    assert safe_name(name) != name or "@-" not in name


def test_long_ones_that_begin_alike_have_other_names() -> None:
    names = {safe_name("x" * 500 + end) for end in ("", "a", "b")} | {safe_name("x" * 500, "a")}
    assert len(names) == 4
    assert all(len(name) == NAME_MAX and name.startswith("x" * 133 + "@-@") for name in names)


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("Müller GmbH", "bob+tag@x.org"), "M@-c3bc-ller@-20-GmbH:bob@-2b-tag@x.org"),
        (("invoice_7", "a/b-c.d"), "invoice_7:a/b-c.d"),
        (("a:b",), "a@-3a-b"),
        (("",), "@--"),
        ((".a..b.",), "@-2e-a@-2e2e-b@-2e-"),
        (("a@-b", "c@"), "a@-40--b:c@-40-"),
    ],
)
def test_what_it_looks_like_stays_what_it_is(parts: tuple[str, ...], name: str) -> None:
    assert safe_name(*parts) == name


@given(st.from_regex(r"[A-Za-z0-9_/][A-Za-z0-9._/@-]{0,50}[A-Za-z0-9_/]", fullmatch=True))
def test_a_name_without_signs_of_its_own_stays_and_so_does_its_second_time(text: str) -> None:
    if "@-" not in text and ".." not in text:
        assert safe_name(text) == text
    else:
        assert safe_name(text) != text


def test_it_takes_texts_only() -> None:
    with pytest.raises(ConfigError, match="texts, not int"):
        safe_name("a", 7)  # type: ignore[arg-type]
    assert incumbent.safe_name is safe_name
