"""Two clients of one register, request by request: each rule of `stores.registers` is needed.

Each history is played twice: with all rules, where nobody is wronged; and with the one that it is
about left out, where two hold the name at once. On registers in a dict, and on those of each store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Gone, Granted, Refused, Renewed
from incumbent.stores.registers import Incarnation, Request, Swaps
from incumbent.stores.sqlite import SqliteEngine
from incumbent.stores.sqlite.records import Records
from tests.rules.interleavings import HISTORIES, KEY, DictParty, Party
from tests.rules.parties import KubernetesParty, MysqlParty, PostgresParty, SqliteParty
from tests.stores.party import soon

SHARED = Ask(10.0, "me", permits=1)


SERVERS = [pytest.param(it, marks=pytest.mark.full) for it in ("postgresql", "mysql")]


@contextmanager
def of(
    store: str, left_out: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Party]:
    match store:
        case "postgresql":
            party: Party = PostgresParty(left_out, request.getfixturevalue("postgres_server"))
        case "mysql":
            party = MysqlParty(left_out, request.getfixturevalue("maria_server"), monkeypatch)
        case "kubernetes":
            party = KubernetesParty(request.getfixturevalue("own_api_server"), monkeypatch)
        case "sqlite":
            party = SqliteParty(request.getfixturevalue("tmp_path"))
        case _:
            party = DictParty(left_out)
    with closing(party):
        yield party


# The API server itself compares versions, so no rule of Kubernetes' can be left out.
@pytest.mark.parametrize(
    "store", ["dict", *SERVERS, pytest.param("kubernetes", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("rule", HISTORIES)
def test_nobody_takes_what_another_holds(
    rule: str, store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with of(store, "nothing", request, monkeypatch) as party:
        assert not HISTORIES[rule](party)


@pytest.mark.parametrize("store", ["dict", "sqlite", *SERVERS])
@pytest.mark.parametrize("rule", HISTORIES)
def test_two_hold_the_name_where_the_rule_is_left_out(
    rule: str, store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with of(store, rule, request, monkeypatch) as party:
        assert HISTORIES[rule](party)


def test_nothing_comes_between_the_requests_of_an_operation_on_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [SqliteEngine(tmp_path / "leases.db").store() for _ in range(2)]
    answer, came = Records._answer, list[str]()
    stores[1].read(KEY, soon())

    def after_another_tried(records: Records, request: Request) -> Any:
        if isinstance(request, Swaps):
            monkeypatch.setattr(Records, "_answer", answer)
            with pytest.raises(StoreUnavailable, match="stayed locked"):
                stores[1].take(KEY, "b", SHARED, soon(0.3))
            came.append("b")
        return answer(records, request)

    monkeypatch.setattr(Records, "_answer", after_another_tried)
    assert isinstance(stores[0].take(KEY, "a", SHARED, soon()), Granted)
    assert came == ["b"]
    assert isinstance(stores[1].take(KEY, "b", SHARED, soon()), Refused)
    for store in stores:
        store.close()


def test_a_swap_is_refused_once_the_clock_has_stepped_back() -> None:
    party = DictParty("nothing")
    a = party.take("a")
    a.go()
    party.pass_time(-60)
    refused = a.finish()
    assert isinstance(refused, StoreUnavailable)
    assert "stepped back" in str(refused)
    assert party.registers.rows == {}


def test_a_holder_from_before_a_failover_has_lost_its_lease() -> None:
    party = DictParty("nothing")
    b = party.take("b").finish()
    party.registers.fail_over_to({}, Incarnation("second"))
    assert party.renew(b).finish() == [Gone("store_restarted")]


def test_a_new_incarnation_grants_nothing_for_the_longest_ttl_that_it_knows_of() -> None:
    party = DictParty("nothing")
    party.registers.fail_over_to({}, Incarnation("second", age=59.0, longest=60.0))
    refused = party.take("a").finish()
    assert isinstance(refused, StoreUnavailable)
    assert refused.retry_after == pytest.approx(1.0)
    party.registers.fail_over_to({}, Incarnation("second", age=60.0, longest=60.0))
    assert isinstance(party.take("a").finish(), Granted)


def test_a_name_that_changes_all_the_time_is_given_up_for_now() -> None:
    party = DictParty("nothing")
    a = party.take("a")
    a.go()
    while a.outcome is None:
        other = party.take("x").finish()
        if isinstance(other, Granted):
            party.give(other).finish()
        a.go()
    assert isinstance(a.outcome, StoreUnavailable)
    assert a.outcome.retry_after
    assert "changed 8 times" in str(a.outcome)


def test_a_renewal_goes_on_where_a_take_gives_up() -> None:
    party = DictParty("nothing")
    b = party.take("b").finish()
    renewal = party.renew(b)
    renewal.go()
    for _ in range(20):
        assert party.renew(b).finish() == [Renewed()]
        renewal.go()
    assert renewal.finish() == [Renewed()]
