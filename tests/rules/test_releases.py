"""Two releases of the rules on one store: they say the same, and lose nothing of each other.

A part of a record that only the later one knows is carried on by this one. Rules that decide
otherwise have another format, and then neither touches what the other wrote.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Granted, Key, Released, Stored
from incumbent.stores.base import Store
from incumbent.stores.names import flat
from incumbent.stores.probing import PROBE
from tests import tiers
from tests.rules.histories import play
from tests.rules.releases import COUNTING, Change, another, counted, this
from tests.rules.shelves import Shelf, shelf_of
from tests.stores.party import new_claim, soon

HISTORIES = {"dict": 10, "sqlite": 3, "postgresql": 3, "mysql": 3, "kubernetes": 3}
KEY = Key("default", "job")
ASK = Ask(10.0, "me")
OTHER_RULES: Change = ("rules/codec.py", "FORMAT: Final = 1", "FORMAT: Final = 2")
SAME_TABLES: tuple[Change, ...] = tuple(
    (f"stores/{file}", "FORMAT: Final = codec.RECORD_FORMAT", "FORMAT: Final = 1")
    for file in ("sqlite/schema.py", "mysql/statements.py", "postgresql/errors.py")
)


WITH_COLUMNS = [
    "sqlite",
    *(pytest.param(server, marks=pytest.mark.full) for server in ("postgresql", "mysql")),
]


@pytest.fixture(params=["dict", *WITH_COLUMNS, pytest.param("kubernetes", marks=pytest.mark.full)])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shelf(
    engine: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shelf]:
    with shelf_of(engine, request, monkeypatch) as made:
        yield made


class Alternating:
    """A store of which each operation is carried out by a client of one release or the other.

    After each one it looks whether the part that only the later release knows is as that wrote it.
    """

    def __init__(self, rng: random.Random, shelf: Shelf, ours: Store, later: Store) -> None:
        self._rng, self._shelf, self._sides = rng, shelf, (ours, later)
        self._grants: set[tuple[Key, int]] = set()
        self.most = 0

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        side = self._rng.choice(self._sides)

        def carried_out(*asked: Any, **more: Any) -> Any:
            before = self._counted()
            outcome = getattr(side, operation)(*asked, **more)
            if side is self._sides[1] and self._is_counted(asked[0], outcome, before):
                before[flat(asked[0])] = before.get(flat(asked[0]), 0) + 1
            for key, number in self._counted().items():
                assert number == before.get(key, 0), f"{operation}: {before}, then {key}: {number}"
            self.most = max(self.most, *before.values(), 0)
            if isinstance(outcome, Granted):
                self._grants.add((asked[0], outcome.token))
            return outcome

        return carried_out

    def _is_counted(self, key: Key, outcome: object, before: dict[str, int]) -> bool:
        """Whether the later release counted what it answered."""
        if isinstance(outcome, Granted):
            return before.get(flat(key), 0) > 0 and (key, outcome.token) not in self._grants
        return isinstance(outcome, Stored) and outcome.version > 0

    def _counted(self) -> dict[str, int]:
        return {
            name: counted(json.loads(text.split(b" ", 2)[2]).get("counted"))
            for name, text in self._shelf.texts().items()
            if text
        }


@pytest.mark.left(tiers.SEEDS, "*-0")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("part", range(3))
def test_what_only_the_later_release_knows_is_carried_on(
    engine: str, shelf: Shelf, tmp_path: Path, part: int
) -> None:
    most = 0
    with another("incumbent_later", tmp_path, COUNTING) as later:
        for seed in range(part * HISTORIES[engine], (part + 1) * HISTORIES[engine]):
            shelf.clear()
            sides = shelf.store(this), shelf.store(later)
            store = Alternating(random.Random(seed), shelf, *sides)
            play(seed, shelf.subject(store))
            most = max(most, store.most)
            for side in sides:
                side.close()
    assert most > 1


# -- another format --------------------------------------------------------------------------------


def refused(store: Store, *words: str) -> None:
    """Whatever is asked of the name says so, and what to do."""
    asked: list[Callable[[], object]] = [
        lambda: store.take(KEY, new_claim(), ASK, soon()),
        lambda: store.take(KEY, new_claim(), Ask(10.0, "me", permits=2), soon()),
        lambda: store.give(KEY, new_claim(), None, soon()),
        lambda: store.put(KEY, "state", b"x", None, soon()),
        lambda: store.read(KEY, soon()),
    ]
    for ask in asked:
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        assert caught.value.permanent
        said = str(caught.value)
        assert not [word for word in words if word not in said], said


@pytest.mark.parametrize("first", ["this", "another"])
def test_a_record_of_another_format_is_refused_and_left_as_it_is(
    shelf: Shelf, tmp_path: Path, first: str
) -> None:
    with another("incumbent_other", tmp_path, [OTHER_RULES, *SAME_TABLES]) as other:
        ours, theirs = shelf.store(this), shelf.store(other)
        writer, reader, found, spoken = (
            (ours, theirs, 1, 2) if first == "this" else (theirs, ours, 2, 1)
        )
        assert isinstance(writer.put(KEY, "pause", b"{}", None, soon()), Stored)
        before = shelf.texts()
        assert before[flat(KEY)].startswith(b"incumbent%d " % found)
        refused(reader, f"format {found}", f"speaks format {spoken}", "Nobody is granted")
        # Where a client first tries whether conditional writes hold, that is refused already.
        with pytest.raises(StoreUnavailable, match=f"{flat(KEY)}|{flat(PROBE)}"):
            reader.read(KEY, soon())
        assert shelf.texts()[flat(KEY)] == before[flat(KEY)]
        # Its own release goes on.
        assert "pause" in writer.read(KEY, soon()).fields
        for side in (ours, theirs):
            side.close()


@pytest.mark.parametrize("engine", WITH_COLUMNS, indirect=True)
def test_a_changed_rule_keeps_its_release_away_from_plain_rows_too(
    shelf: Shelf, tmp_path: Path
) -> None:
    with another("incumbent_other", tmp_path, [OTHER_RULES]) as other:
        ours, theirs = shelf.store(this), shelf.store(other)
        granted = ours.take(KEY, new_claim(), ASK, soon())
        assert isinstance(granted, Granted)
        before = shelf.texts()
        refused(theirs, "format 1", "2")
        assert shelf.texts() == before
        assert ours.give(KEY, granted.claim, granted.token, soon()) == Released()
        for side in (ours, theirs):
            side.close()
