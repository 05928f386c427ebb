"""Which tests run on uvloop, too: each that uses asyncio and is about stores, locks or elections.

uvicorn[standard] installs uvloop, and its transports are not derived from asyncio's. Of a test with
many parameters one case is enough, a different one for each test; of a contract suite, each case.
tests/tiers.py says which of these rows `make test` leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any
from zlib import crc32

import pytest
import uvloop

_FOLDERS = ("contract/", "net/", "shards/", "stores/", "top/")
_SUITES = "contract/"
_LOOPS = ("asyncio", "async")
_WITHOUT = {
    "contract/test_suite_bites.py": "bugs of stores, and not of what carries their bytes",
    "net/test_dial.py::test_a_refused_connection_names_the_address": "its words have no address",
    "stores/redis/test_one_connection.py"
    "::test_an_exception_between_noting_and_sending_ends_the_connection": "patches a transport",
    "top/test_signal_errors.py": "it only logs what a handler raises, but for KeyboardInterrupt",
}
"""Tests without such a row, and why."""


def rows(items: list[pytest.Item]) -> list[pytest.Item]:
    """The additional rows on uvloop."""
    cases: dict[tuple[str, str], list[pytest.Function]] = {}
    for item in items:
        file = item.nodeid.partition("::")[0].removeprefix("tests/")
        if not isinstance(item, pytest.Function) or _WITHOUT.keys() & {
            file,
            f"{file}::{item.originalname}",
        }:
            continue
        if file.startswith(_FOLDERS) and _is_async(item):
            each = _id(item) if file.startswith(_SUITES) else ""
            cases.setdefault((file, f"{item.originalname}{each}"), []).append(item)
    chosen = [found[crc32(name.encode()) % len(found)] for (_, name), found in cases.items()]
    return [_on_uvloop(item) for item in chosen]


def _id(item: pytest.Function) -> str:
    return item.callspec.id if hasattr(item, "callspec") else ""


def _is_async(item: pytest.Function) -> bool:
    """Whether it has a side and that is asyncio; else whether its code uses a loop."""
    sides = {"blocking", "sync", "async", "asyncio"} & set(_id(item).split("-"))
    if sides:
        return bool(sides & set(_LOOPS))
    function = item.function
    return isinstance(function, FunctionType) and _uses_a_loop(function.__code__)


def _uses_a_loop(code: CodeType) -> bool:
    names = (*code.co_names, *code.co_freevars)
    if any(name == "asyncio" or name.endswith(("_async", "on_asyncio")) for name in names):
        return True
    return any(isinstance(it, CodeType) and _uses_a_loop(it) for it in code.co_consts)


def _on_uvloop(item: pytest.Function) -> pytest.Function:
    callspec: Any = getattr(item, "callspec", None)
    if callspec is not None:
        callspec = replace(callspec, _idlist=[*callspec._idlist, "uvloop"])
    row: pytest.Function = pytest.Function.from_parent(
        item.parent,
        name=f"{item.originalname}[{callspec.id if callspec else 'uvloop'}]",
        callspec=callspec,
        callobj=item.obj,
        fixtureinfo=item._fixtureinfo,
        originalname=item.originalname,
    )
    row.add_marker(pytest.mark.uvloop)
    return row


@contextmanager
def on_uvloop() -> Iterator[None]:
    """Every new event loop is one of uvloop's."""
    with pytest.MonkeyPatch.context() as patch:
        for place in (asyncio, asyncio.events):
            patch.setattr(place, "new_event_loop", uvloop.new_event_loop)
        yield
