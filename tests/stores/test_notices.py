"""What a holder is told by the fields beside its lease."""

from __future__ import annotations

from typing import Any

import pytest

from incumbent.model import Notice
from incumbent.rules.notices import BREAK, encode_notice, notices_for


@pytest.mark.parametrize(
    ("facts", "notice"),
    [
        ({}, Notice("resign", "me", "tired")),
        ({"to": "b"}, Notice("transfer", "me", "tired", "b")),
        ({"kind": BREAK}, Notice("break", "me", "tired")),
        ({"kind": "something new"}, Notice("resign", "me", "tired")),
    ],
)
def test_a_holder_is_told_what_it_was_asked_for(facts: dict[str, Any], notice: Notice) -> None:
    value = encode_notice(who="me", reason="tired", token=7, **facts)
    assert notices_for(7, None, value) == (notice,)
    assert notices_for(8, None, value) == ()


def test_a_notice_without_a_kind_is_stored_as_before() -> None:
    assert encode_notice(who="me", token=7) == (
        b'{"who": "me", "reason": "", "to": "", "token": 7}'
    )
