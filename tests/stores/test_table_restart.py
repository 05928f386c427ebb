"""The specification of a store that restarts: it waits for who may believe, not for who asks."""

from __future__ import annotations

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Granted, Key
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.memory import MemoryTable

KEY, OTHER = Key("default", "job"), Key("default", "other")


def waits_for(table: MemoryTable, ttl: float, now: float, named: float | None = None) -> float:
    try:
        table.take(OTHER, "asker", Ask(ttl, "b"), now, 1e9, named)
    except StoreUnavailable as error:
        return error.retry_after or -1.0
    return 0.0


@pytest.fixture
def table() -> MemoryTable:
    table = MemoryTable()
    assert isinstance(table.take(KEY, "holder", Ask(20.0, "a"), 100.0, 1e9), Granted)
    return table


def test_an_asker_with_a_short_ttl_waits_for_the_default_ttl_after_a_wipe(
    table: MemoryTable,
) -> None:
    table.restart(101.0, empty=True)
    assert waits_for(table, 2.0, 101.0) == TTL_DEFAULT
    assert waits_for(table, 2.0, 101.0 + TTL_DEFAULT) == 0.0


def test_an_asker_with_a_long_ttl_waits_for_that(table: MemoryTable) -> None:
    table.restart(101.0, empty=True)
    assert waits_for(table, 40.0, 101.0) == 40.0


def test_a_longer_ttl_is_learnt_from_what_was_kept(table: MemoryTable) -> None:
    table.restart(101.0, empty=False)
    assert waits_for(table, 2.0, 101.0) == 20.0


def test_an_operators_word_is_final(table: MemoryTable) -> None:
    table.restart(101.0, empty=False)
    assert waits_for(table, 40.0, 101.0, named=3.0) == 3.0
    assert waits_for(table, 40.0, 101.0, named=0.0) == 0.0
