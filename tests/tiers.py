"""Which tests `make test` leaves to `make test-all`, and which run few at a time; why.

A mark beside a test says so, with its reason:

    @pytest.mark.left(tiers.SEEDS, "*-0")       `make test` keeps the cases that fit "*-0" (fnmatch)
    @pytest.mark.full                           `make test` runs none of it
    pytestmark = pytest.mark.timing(tiers.PROCESSES)   the file runs after the others, few at a time
    pytestmark = pytest.mark.crowd(tiers.MANY)         the file runs at the very end, alone

The reasons that several share are below. Only cases of the shipped contract suite are named here:
its files know nothing of our tiers. Regression tests of defects that were mended are never left.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest

TESTS = Path(__file__).parent

THIN, REST = "not full", "full"
QUICK = "not slow and not server and not full and not timing and not crowd"

# -- reasons ---------------------------------------------------------------------------------------

PROCESSES = "starts processes and looks at the clock: a deadline is the subject"
BURNS = "keeps the interpreter busy on purpose, and has 0.1 s to be late"
MANY = "starts many processes or threads at once: whatever runs beside it would be late"
SEEDS = "more seeds of the same worlds"
STORES = "other stores: the subject is above them, and each has such a test in `make test`"
SIDES = "the other side (blocking or asyncio), signal or isolation, which goes the same way"
MEET = "kept are those in which each value of each parameter is met"
LONG = "long for what it shows beside the tests that are kept"
CRASHES = "the other way to lose a server, which goes the same way"
BROWSER = (
    "needs a browser, which is larger than all servers; the page is read as HTML in `make test`"
)
FORMS = "more forms of the same mistake: unit tests of names, durations and URLs have them all"
NET = "shows that the tests would see a defect: it changes with the tests, not with the product"

FRAMEWORKS = "needs web frameworks and queues, in an environment of their own"

# -- cases of the contract suite -------------------------------------------------------------------

# What of contention, crowds and clients is left where the same cases run on Redis and in memory. A
# store must have a case that is named here, or the name is stale.
_HELD_BEFORE = ("*-held_before*",)
_RACES: dict[str, tuple[str, ...]] = {
    "test_of_many_takers_one_is_granted": _HELD_BEFORE,
    "test_of_many_takers_through_one_client_one_is_granted": (),
    "test_nobody_is_granted_a_closed_name": (),
    "test_of_many_takers_one_has_the_slot": _HELD_BEFORE,
    "test_of_many_writers_with_the_same_guard_one_writes": ("*-removed*",),
    "test_three_hundred_fields_are_all_kept_beside_a_lease": (),
}
_SHARED_RACES: dict[str, tuple[str, ...]] = {
    "test_of_many_takers_as_many_are_granted_as_there_are_permits": _HELD_BEFORE,
}
_CLIENTS: dict[str, tuple[str, ...]] = {
    "test_nothing_is_free_sooner_for_a_clock_that_is_off": ("*-ahead*",),
    "test_everything_ends_in_time_whatever_a_clock_says": (),
    "test_a_slot_is_kept_as_long_as_asked_whatever_a_clock_says": (),
    "test_a_candidacy_lasts_as_long_as_asked_whatever_a_clock_says": (),
    "test_an_answer_that_came_too_late_answers_no_other_request": ("*-take*", "*-give*"),
    "test_a_name_that_nobody_resolves_delays_nobody_past_until": ("*-take*",),
}

_CASES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "contract/test_memory.py": {
        "test_of_many_takers_one_is_granted": _HELD_BEFORE,
        "test_of_many_takers_one_has_the_slot": _HELD_BEFORE,
        **_SHARED_RACES,
    },
    "contract/test_redis.py": {
        **_SHARED_RACES,
        "test_of_many_takers_one_has_the_slot": _HELD_BEFORE,
        "test_of_many_writers_with_the_same_guard_one_writes": ("*-removed",),
        "test_three_hundred_fields_are_all_kept_beside_a_lease": ("blocking",),
        "test_nothing_is_free_sooner_for_a_clock_that_is_off": (
            "blocking-ahead",
            "async-behind",
        ),
        "test_everything_ends_in_time_whatever_a_clock_says": (
            "async-ahead",
            "blocking-behind",
        ),
        "test_a_slot_is_kept_as_long_as_asked_whatever_a_clock_says": ("async",),
        "test_a_candidacy_lasts_as_long_as_asked_whatever_a_clock_says": ("blocking",),
        "test_a_place_in_line_is_kept_whatever_a_clock_says": ("async",),
        "test_a_name_that_nobody_resolves_delays_nobody_past_until": (
            "*-take",
            "*-wait_change",
        ),
    },
    "contract/test_etcd.py": {**_RACES, **_SHARED_RACES, **_CLIENTS},
    "contract/test_postgresql.py": {**_RACES, **_SHARED_RACES, **_CLIENTS},
    "contract/test_mysql.py": {
        **_RACES,
        **_SHARED_RACES,
        **_CLIENTS,
        "test_a_pause_survives_a_restart": (),
        "test_a_restart_ends_nothing_where_leases_survive_it": ("blocking",),
        "test_a_wipe_ends_what_was_believed": (),
        "test_a_wipe_ends_what_was_shared": (),
        "test_fields_survive_a_restart": (),
        "test_the_token_grows_over_a_restart": (),
        "test_versions_do_not_come_back_after_a_restart": (),
    },
    "contract/test_kubernetes.py": {
        **_RACES,
        **_SHARED_RACES,
        **_CLIENTS,
        "test_a_wipe_ends_what_was_believed": (),
        "test_a_wipe_ends_what_was_shared": (),
        "test_fields_survive_a_restart": (),
        "test_the_token_grows_over_a_restart": (),
        "test_versions_do_not_come_back_after_a_restart": (),
    },
    "contract/test_quorum.py": {**_RACES, **_CLIENTS},
    "contract/test_sqlite.py": {**_RACES, **_SHARED_RACES},
}
"""By file: the cases of which `make test` leaves all but these."""

_EACH = ("blocking", "async", "uvloop")
_THIRD = (*_EACH, *["another engine"] * 6)
TURNS: Final[Mapping[str, tuple[str, ...]]] = {
    "contract/test_etcd.py": _THIRD,
    "contract/test_kubernetes.py": _EACH,
    "contract/test_memory.py": _EACH,
    "contract/test_mysql.py": _THIRD,
    "contract/test_postgresql.py": _THIRD,
    "contract/test_quorum.py": _THIRD,
    "contract/test_redis.py": _EACH[1:],
    "contract/test_redis_layouts.py": _THIRD,
    "contract/test_redis_valkey.py": _THIRD,
    "contract/test_sqlite.py": _EACH,
    "contract/test_wired.py": _EACH,
}
"""By file of the contract: of which `make test` runs one for each case, by the case's name.

So Redis runs each case on both sides; in memory, on SQLite and on Kubernetes each runs once, and
each of the other engines has its own third of them.
"""
_ONE_IN: Final = 3
"""Of the rows on uvloop of tests of stores, each beside one on asyncio, `make test` runs so few."""
_LOOPS: Final = frozenset({"stores/test_loops.py", "stores/redis/test_one_connection.py"})
"""Those files whose subject is a loop or its transports: of them it runs all."""
PROOFS: Final[Mapping[str, frozenset[str]]] = {
    "contract/test_mysql.py": frozenset(
        {
            "test_a_release_with_another_token_is_refused",
            "test_a_renewal_after_the_end_brings_nothing_back",
            "test_a_renewal_never_shortens_the_ttl",
            "test_a_renewal_with_another_token_is_refused",
            "test_a_repeat_after_somebody_else_came_is_refused",
            "test_the_holder_is_told_of_a_pause",
        }
    ),
    "contract/test_postgresql.py": frozenset(
        {
            "test_a_stranger_cannot_renew",
            "test_nobody_comes_before_one_that_asked_for_fairness",
        }
    ),
    "contract/test_quorum.py": frozenset(
        {
            "test_a_repeated_take_uses_its_slot_no_longer",
            "test_a_resign_notice_is_shown_no_more_once_the_next_holder_came",
            "test_a_take_that_arrives_after_a_closing_in_doubt_brings_nothing",
            "test_of_many_takers_one_has_the_slot",
        }
    ),
}
"""By file: the cases that mutations name, which `make mutants` looks for in the first tier."""


# -- marks -----------------------------------------------------------------------------------------


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark what `make test` leaves with `full`."""
    for item in items:
        if _is_not_its_turn(item) or any(_leaves(kept, item) for _, kept in _kept_of(item)):
            item.add_marker(pytest.mark.full)


def _leaves(kept: tuple[str, ...], item: pytest.Item) -> bool:
    return not any(fnmatchcase(_case(item), one) for one in kept)


def _kept_of(item: pytest.Item) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What says that it is left, each with the cases that are kept."""
    for left in item.iter_markers("left"):
        why, *kept = left.args
        yield f"{file_of(item)}: left({why!r})", tuple(kept)
    named = _CASES.get(file_of(item), {})
    if _function(item) in named:
        yield f"{file_of(item)}: {_function(item)}", named[_function(item)]


def _is_not_its_turn(item: pytest.Item) -> bool:
    """Whether a case of a contract suite has its turn on another side or engine, or a row none."""
    file, turn = file_of(item), crc32(f"{file_of(item)}::{_function(item)}".encode())
    if file.startswith("stores/") and item.get_closest_marker("uvloop"):
        return file not in _LOOPS and turn % _ONE_IN != 0
    if file not in TURNS:
        return False
    sides = _EACH if _function(item) in PROOFS.get(file, ()) else TURNS[file]
    side = "uvloop" if item.get_closest_marker("uvloop") else _case(item).partition("-")[0]
    return side in sides and side != sides[turn % len(sides)]


def stale(items: Iterable[pytest.Item]) -> list[str]:
    """Kept cases that there are not, in files that were collected whole."""
    cases, named, files = defaultdict(list), set[str](), set[str]()
    for item in items:
        files.add(file_of(item))
        for said, kept in _kept_of(item):
            named.add(said)
            for one in kept:
                cases[said, one].append(_case(item))
    none = [f"{said}: {one}" for (said, one), found in cases.items() if not _any(found, one)]
    for file in files & _CASES.keys():
        none += [f"{file}: {it}" for it in _CASES[file] if f"{file}: {it}" not in named]
    return none


def _any(cases: Iterable[str], kept: str) -> bool:
    return any(fnmatchcase(case, kept) for case in cases)


# -- files, as far as their text tells -------------------------------------------------------------

_OF_THE_FILE = r"^pytestmark = [^\n]*(?:\n [^\n]*)*?mark\."
_WHOLLY = re.compile(_OF_THE_FILE + r"left\((?:[\w.]+|\"[^\"]*\")\)", re.M)
_SLOW = re.compile(_OF_THE_FILE + r"(?:slow|server|full)\b", re.M)
SERVER_MODULES = {
    *("tests.support.etcd", "tests.support.etcd_cluster", "tests.support.postgresql"),
    *("tests.support.redis_cluster", "tests.support.redis_sentinels", "tests.support.servers"),
    *("tests.support.mariadb", "tests.support.kubernetes.server"),
}
"""Who imports a class from one of these, or from a `world`, starts servers."""
_PLACES = "|".join(sorted(name.removesuffix(".server") for name in SERVER_MODULES))
_SERVED = re.compile(
    rf"^from (?:{_PLACES}|tests\.[\w.]+\.world) import (?:\([^)]*|[^\n]*)\b[A-Z][a-z]", re.M
)


def files_with(mark: str, *, wholly: bool = False) -> set[str]:
    """The files in which a test may have this mark: `left`, `full`, `timing` or `crowd`."""
    some = [(name, text) for name, text in _texts() if f"mark.{mark}" in text]
    of_the_file = re.compile(_OF_THE_FILE + mark, re.M)
    return {name for name, text in some if not wholly or of_the_file.search(text)}


def files_left() -> set[str]:
    """The files of which `make test` may leave a test."""
    on_uvloop = {name for name, _ in _texts() if name.startswith("stores/")} - _LOOPS
    return files_with("left") | files_with("full") | TURNS.keys() | _CASES.keys() | on_uvloop


def files_left_wholly() -> set[str]:
    """The files that `make test` need not even collect."""
    return {name for name, text in _texts() if "mark.left(" in text and _WHOLLY.search(text)}


def files_with_servers() -> set[str]:
    """The files of which `make quick` runs nothing: each test is of a server, or slow."""
    return {name for name, text in _texts() if _SERVED.search(text) or _SLOW.search(text)}


@cache
def _texts() -> list[tuple[str, str]]:
    paths = sorted(TESTS.rglob("test_*.py"))
    return [(str(path.relative_to(TESTS)), path.read_text(encoding="utf-8")) for path in paths]


def file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0].removeprefix("tests/")


def _function(item: pytest.Item) -> str:
    return getattr(item, "originalname", None) or item.name


def _case(item: pytest.Item) -> str:
    call = getattr(item, "callspec", None)
    return call.id if call else ""
