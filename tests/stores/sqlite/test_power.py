"""`sqlite:` and a power loss: what was answered as done is in the image of the last sync."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from incumbent import clock
from incumbent.model import Ask, Granted, Key, Refused, Slot
from incumbent.stores.sqlite import SqliteEngine
from incumbent.stores.sqlite.core import SqliteStore
from incumbent.stores.sqlite.host import Host
from tests.support.needs import needs

KEY = Key("default", "report")
SLOT = Slot("monday", 3600.0)

Judge: TypeAlias = "Callable[[SqliteStore], bool]"

pytestmark = needs(shutil.which("cc") is not None, "a C compiler: the disk is a preloaded library")

PRELUDE = """
import os, signal, sys
from pathlib import Path
from incumbent import clock
from incumbent.model import *
from incumbent.stores.sqlite import SqliteEngine
store = SqliteEngine(Path(sys.argv[1])).store()
key = Key("default", "report")
def soon():
    return clock.now() + 5
def take(claim, **more):
    got = store.take(key, claim, Ask(10.0, "me", **more), soon())
    assert isinstance(got, Granted)
    return got
# Much that is not synced, so that no answer is on the disk by chance.
for number in range(100):
    store.give(key, "before", take("before").token, soon())
monday = Slot("monday", 3600.0)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("last_sync") / "last_sync.so"
    source = Path(__file__).with_name("last_sync.c")
    command = ["cc", str(source), "-O1", "-shared", "-fPIC", "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return made


def lose_power_after(code: str, folder: Path, library: Path) -> SqliteStore:
    """Run `code` up to its end, which is a power loss; the store of the next boot."""
    image = folder / "image"
    image.mkdir()
    preload = {"LD_PRELOAD": str(library), "INCUMBENT_TEST_IMAGE": str(image)}
    end = "\nos.kill(os.getpid(), signal.SIGKILL)\n"
    command = [sys.executable, "-c", PRELUDE + code + end, str(folder / "leases.db")]
    done = subprocess.run(command, env={**os.environ, **preload}, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    host = Host(clock.now, clock.wall, "the next boot")
    return SqliteEngine(image / "leases.db", host=lambda: host).store()


def soon() -> float:
    return clock.now() + 5


def slot_is_used(store: SqliteStore) -> bool:
    outcome = store.take(KEY, "after", Ask(10.0, "other", slot=SLOT), soon())
    return isinstance(outcome, Refused) and outcome.reason == "used"


def slot_is_free(store: SqliteStore) -> bool:
    return isinstance(store.take(KEY, "after", Ask(10.0, "other", slot=SLOT), soon()), Granted)


def is_refused(reason: str) -> Judge:
    def judge(store: SqliteStore) -> bool:
        outcome = store.take(KEY, "after", Ask(10.0, "other"), soon())
        return isinstance(outcome, Refused) and outcome.reason == reason

    return judge


def last_entry_is(value: bytes | None) -> Judge:
    def judge(store: SqliteStore) -> bool:
        entry = store.read(KEY, soon()).fields.get("ledger")
        return (entry and entry.value) == value

    return judge


KEPT: dict[str, tuple[str, Judge]] = {
    "a used slot": ('take("a", slot=monday)', slot_is_used),
    "a used slot, asked for again": (
        """
mine = take("a", slot=monday)
take("a", slot=monday)
store.give(key, "a", mine.token, soon())
""",
        slot_is_used,
    ),
    "a slot that was given back": (
        """
mine = take("a", slot=monday)
store.give(key, "a", mine.token, soon(), parting=Parting(slot="monday"))
""",
        slot_is_free,
    ),
    "an entry of the ledger": (
        'store.put(key, "ledger", b"ended", ABSENT, soon())',
        last_entry_is(b"ended"),
    ),
    "an entry under a claim": (
        """
mine = take("a")
store.put(key, "ledger", b"begun", ByClaim("a", mine.token), soon())
""",
        last_entry_is(b"begun"),
    ),
    "an entry that was replaced": (
        """
first = store.put(key, "ledger", b"begun", ABSENT, soon())
store.put(key, "ledger", b"ended", ByVersion(first.version), soon())
""",
        last_entry_is(b"ended"),
    ),
    "an entry that was removed": (
        """
store.put(key, "ledger", b"begun", ABSENT, soon())
store.put(key, "ledger", None, None, soon())
""",
        last_entry_is(None),
    ),
    "a pause": ('store.put(key, "pause", b"{}", None, soon())', is_refused("paused")),
    "a closing": (
        'store.give(key, "a", take("a").token, soon(), parting=Parting(closed_for=60.0))',
        is_refused("closed"),
    ),
    "a reservation": (
        """
mine = take("a")
store.give(key, "a", mine.token, soon(), parting=Parting(closed_for=60.0, reserve_for="successor"))
""",
        is_refused("reserved"),
    ),
}


@pytest.mark.parametrize("what", KEPT)
def test_what_was_answered_as_done_is_there_after_a_power_loss(
    what: str, tmp_path: Path, library: Path
) -> None:
    code, is_kept = KEPT[what]
    store = lose_power_after(code, tmp_path, library)
    try:
        assert is_kept(store)
    finally:
        store.close()


def test_tokens_grow_over_the_loss_of_all_that_was_not_synced(
    tmp_path: Path, library: Path
) -> None:
    store = lose_power_after('Path(sys.argv[1] + ".token").write_text(str(take("a").token))',
        tmp_path, library)  # fmt: skip
    last = int((tmp_path / "leases.db.token").read_text())
    granted = store.take(KEY, "after", Ask(10.0, "other"), soon())
    store.close()
    assert isinstance(granted, Granted)
    assert granted.token > last


def test_the_image_lacks_what_waits_for_no_disk(tmp_path: Path, library: Path) -> None:
    # Or these tests could not fail.
    store = lose_power_after('take("a")', tmp_path, library)
    record = store.read(KEY, soon())
    store.close()
    assert record.history == ()
