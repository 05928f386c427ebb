"""The record in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from incumbent.cli.why import explain
from incumbent.model import Candidate, Field, Holding, Key, Past, Record

KEY = Key("default", "job")
META = json.dumps({"isolation": "pidns", "host": "h", "pid": 7, "state": "stopping"}).encode()


def said(**record: Any) -> str:
    return "\n".join(explain(Record(KEY, **record), 1e9))


def holding(**more: Any) -> tuple[Holding, ...]:
    facts: dict[str, Any] = {"token": 9, "remaining": 12.0, "ttl": 15.0, "held_for": 60.0}
    return (Holding("them", **{**facts, **more}),)


def switch(name: str, **value: Any) -> dict[str, Field]:
    return {name: Field(json.dumps(value).encode(), 1)}


def test_nothing_known_is_free() -> None:
    assert said() == "free: nobody holds it"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"holdings": holding()}, "held by them for 1m, since "),
        ({"holdings": holding()}, "ttl: 12s of 15s left"),
        ({"holdings": holding()}, "nobody is known to stand by"),
        ({"holdings": holding(remaining=2.0)}, "gone, frozen or cut off?"),
        ({"holdings": holding(meta=META)}, "its process is 7 on h, isolation pidns"),
        ({"holdings": holding(meta=META)}, "them is stopping"),
        (
            {"holdings": holding(meta=b'{"incumbent.priority":"7 30.000"}')},
            "priority 7: steps down for a higher one, 30s into its term",
        ),
        ({"holdings": holding(foreign=True)}, "is not ours"),
        ({"fields": switch("pause", who="me", reason="why", when=5)}, "paused by me (why) since "),
        (
            {"holdings": holding(), "fields": switch("resign", who="me", token=9, to="b")},
            "was asked to resign, to hand over to b by me",
        ),
        ({"closed_for": 5.0}, "closed for another 5s"),
        ({"closed_for": 5.0, "reserved_for": "b"}, "reserved for b for another 5s"),
        ({"slots": {"once": 5.0}}, "not for a run of a used slot: once for another 5s"),
        ({"candidates": (Candidate("a", 1.0), Candidate("b", 1.0))}, "standing by: a, b"),
        ({"history": (Past("a", 1, 0.0, 5.0),)}, "released after 5s"),
        ({"history": (Past("a", 1, 0.0),)}, "its ttl ran out"),
    ],
)
def test_each_fact_has_its_words(record: dict[str, Any], words: str) -> None:
    assert words in said(**record)


@pytest.mark.parametrize("meta", [b"", b"\xff", b"[1]", b"null", b'"x"'])
def test_metadata_of_others_says_nothing(meta: bytes) -> None:
    assert "isolation" not in said(holdings=holding(meta=meta))


def test_an_old_request_to_resign_is_not_the_present_holders() -> None:
    fields = switch("resign", who="me", token=8)
    assert "asked" not in said(holdings=holding(), fields=fields)
