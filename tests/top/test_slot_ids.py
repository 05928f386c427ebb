"""IDs of other schedulers as slots: taken as they are, and never two of them one slot."""

from __future__ import annotations

import pytest

import incumbent
from incumbent import Client, ConfigError, Lock, NotAcquired
from incumbent.model import ONCE
from incumbent.stores.names import NAME_MAX, check_slot
from tests import tiers

AS_THEY_COME = (
    "2026-11-26T10:00:00+01:00",  # Kubernetes, batch.kubernetes.io/cronjob-scheduled-timestamp
    "2018-01-01T00:00:00+00:00",  # Airflow, {{ ts }}
    "scheduled__2018-01-01T00:00:00+00:00",  # Airflow, {{ run_id }}
    "manual__2018-01-01T00:00:00+00:00__2",
    "2026-11-26T09:00:00.123456789Z",  # Temporal
    "5f1e1b2a3c4d5e6f708192a3b4c5d6e7",  # systemd, INVOCATION_ID
    "d9078da5-9915-40a0-bfa1-392c7bde42ed",  # Celery
    "Thu Nov 26 10:00:00 CET 2026",  # date
    "Do 26. Nov 10:00:00 CET 2026",
    "job #7, part 2/3 (100 %)",  # a build server
    "{'dag': \"nightly\"}",
    "名前=値&x=1",
)
ALIKE = (
    *("a", "A", "a ", "ä", "a\u0308", "a+", "a%2B", "a%20", "a b", "a  b", "a_b", "a+b", "a%2Bb"),
    *("a@-2b-b", "a#2", "a~2", "a..b", "a:b", "a/b", "a'b", 'a"b', "a\\b", "a\\x2bb", "a{b}", "*"),
    *("2026-11-26T10:00:00+01:00", "2026-11-26T10:00:00 01:00", "2026-11-26T10:00:00-01:00"),
    *("2026-11-26T09:00:00Z", "2026-11-26T09:00:00z", "2026-11-26T09:00:00+00:00"),
    *("x" * 199, "x" * 200, "y" + "x" * 199, "ü" * 200, "-", "--slot", "null", "0", "00"),
)
IDS = [one for one in dict.fromkeys((*AS_THEY_COME, *ALIKE)) if one == one.strip()]


@pytest.mark.left(tiers.STORES, "memory", "sqlite", "redis")
def test_each_id_is_a_slot_of_its_own_on_every_store(every_store: str) -> None:
    with Client(every_store) as client:
        for one in IDS:
            lock = Lock("job", store=client, once_per="1h", slot=one, timeout=0)
            lock.acquire().release()
        for one in IDS:
            with pytest.raises(NotAcquired) as refused:
                Lock("job", store=client, once_per="1h", slot=one, timeout=0).acquire()
            assert refused.value.reason == "used", one
        # Some stores list the newest only.
        assert set(client.read("job").slots) <= set(IDS)
        assert IDS[-1] in client.read("job").slots


@pytest.mark.parametrize("slot", AS_THEY_COME)
def test_what_other_schedulers_give_is_taken_as_it_is(slot: str) -> None:
    assert check_slot(slot) == slot


@pytest.mark.parametrize(
    "slot",
    ["", " ", " a", "a ", "a\n", "a\0", "a\x1b[2J", "\udcff", "a\u202fb", "x" * (NAME_MAX + 1)],
)
def test_a_refused_id_is_told_what_is_allowed_and_how_to_make_it_so(slot: str) -> None:
    with pytest.raises(ConfigError, match=r"slot=.*1 to 200 printable .* sha256sum") as refused:
        check_slot(slot)
    assert refused.value.name == "slot"


@pytest.mark.parametrize("slot", [ONCE, f"{ONCE}/2026-11-26T09:00:00.000Z"])
def test_the_slots_that_the_ledger_makes_itself_are_nobodys_to_name(slot: str) -> None:
    with pytest.raises(ConfigError, match="incumbent's"):
        check_slot(slot)


def test_an_id_in_an_argument_is_the_slot_itself() -> None:
    ran: list[str] = []

    @incumbent.once("close", per="1h", slot="{ts}", store="memory:slots of arguments")
    def close(ts: str) -> None:
        ran.append(ts)

    for ts in ("2026-11-26T10:00:00+01:00", "2026-11-26T10:00:00+02:00") * 2:
        close(ts)
    assert len(ran) == 2
    slots = set(Client("memory:slots of arguments").read("close").slots)
    assert slots == set(ran)
