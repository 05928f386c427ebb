"""`sqlite:` among real processes: killed, stopped, forked, shifted in time, short of disk."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Granted, Key
from incumbent.stores.sqlite import SqliteEngine
from incumbent.stores.sqlite.file import SqliteFile
from incumbent.stores.sqlite.host import this_host
from tests import tiers
from tests.support.forks import in_a_child
from tests.support.needs import needs
from tests.support.pace import BUSY, took
from tests.support.waiting import written

pytestmark = pytest.mark.slow

KEY = Key("default", "report")

PRELUDE = """
import os, sys, threading, time
from pathlib import Path
from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import *
from incumbent.stores.sqlite import SqliteEngine
engine = SqliteEngine(Path(sys.argv[1]))
store = engine.store()
key = Key("default", "report")
def soon(seconds=5.0):
    return clock.now() + seconds
def take(claim="a", name="report", ttl=10.0):
    return store.take(Key("default", name), claim, Ask(ttl, "me"), soon())
"""


def start(path: Path, code: str, *before: str) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-c", PRELUDE + code, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run(path: Path, code: str, *before: str) -> list[str]:
    with start(path, code, *before) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    return out.split()


def works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


# -- killed ----------------------------------------------------------------------------------

# Whoever is granted takes a flock, which ends with the process: an overlap cannot be missed. It
# judges only while the grant is young, for this machine may hold a process up longer than its ttl.
WORKER = """
import fcntl, secrets
judge = os.open(sys.argv[1] + ".judge", os.O_CREAT | os.O_RDWR | os.O_APPEND)
while True:
    before = clock.now()
    claim = secrets.token_hex(16)
    try:
        got = store.take(key, claim, Ask(0.4, "me"), soon(1))
    except StoreError:
        continue
    if not isinstance(got, Granted):
        time.sleep(0.002)
        continue
    try:
        fcntl.flock(judge, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if clock.now() < before + 0.3:
            os.write(judge, b"overlap\\n")
        continue
    os.write(judge, f"{got.token}\\n".encode())
    time.sleep(0.0005)
    fcntl.flock(judge, fcntl.LOCK_UN)
    try:
        store.give(key, claim, got.token, soon(1))
    except StoreError:
        pass
"""


@pytest.mark.slow
def test_kills_at_any_instant_leave_one_holder_growing_tokens_and_a_sound_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "leases.db"
    rng = random.Random(52)
    workers = [start(path, WORKER) for _ in range(3)]
    until = time.monotonic() + 3.0
    kills = 0
    judged = Path(f"{path}.judge")
    while time.monotonic() < until or len(written(judged).split()) < 100:
        # A busy machine takes longer to start them: then they live longer.
        longer = 1 if time.monotonic() < until else 10
        time.sleep(longer * rng.uniform(0.02, 0.2))
        place = rng.randrange(len(workers))
        end(workers[place])
        workers[place] = start(path, WORKER)
        kills += 1
    for worker in workers:
        end(worker)
    lines = written(judged).split()
    tokens = [int(line) for line in lines if line != "overlap"]
    assert "overlap" not in lines
    assert tokens == sorted(set(tokens))
    assert kills >= 10
    assert len(tokens) >= 100
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


# -- stopped ---------------------------------------------------------------------------------

STOPS_IN_A_TRANSACTION = """
import signal
link = engine.store().file.borrow()
link.execute("BEGIN IMMEDIATE")
print("in", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_peer_stopped_in_its_transaction_makes_others_unavailable_not_wrong(
    tmp_path: Path,
) -> None:
    engine = SqliteEngine(tmp_path / "leases.db")
    store = engine.store()
    granted = store.take(KEY, "a", Ask(60.0, "me"), clock.now() + 5)
    assert isinstance(granted, Granted)
    peer = start(tmp_path / "leases.db", STOPS_IN_A_TRANSACTION)
    assert peer.stdout is not None
    assert peer.stdout.readline() == "in\n"
    before = clock.now()
    with pytest.raises(StoreUnavailable, match="stopped"):
        store.take(Key("default", "other"), "b", Ask(5.0, "me"), before + 0.3)
    assert took(before) < 0.3 + BUSY
    end(peer)
    after = store.read(Key("default", "other"), clock.now() + 5)
    assert after.holdings == ()
    assert [held.claim for held in store.read(KEY, clock.now() + 5).holdings] == ["a"]
    store.close()


# -- forked ----------------------------------------------------------------------------------


def test_a_forks_child_shares_the_file_truly_even_when_its_parent_goes(tmp_path: Path) -> None:
    # SQLite's locks are the parent's: a child that went on with them would write into a log that
    # the next process to close the file deletes.
    code = """
assert isinstance(take("parent", "parents"), Granted)
reader, writer = os.pipe()
if os.fork():
    os.read(reader, 1)  # the child has opened the file
    store.close()
    os.execv(sys.executable, [sys.executable, "-c", '''
import sys
from pathlib import Path
from incumbent import clock
from incumbent.model import Key
from incumbent.stores.sqlite import SqliteEngine
store = SqliteEngine(Path(sys.argv[1])).store()
store.read(Key("default", "x"), clock.now() + 5)
store.close()
print("closed", flush=True)
import time
until, held = clock.now() + 20, []
while "childs-later" not in held and clock.now() < until:
    held = [r.key.name for r in store.scan("default", "", clock.now() + 5) if r.holdings]
    time.sleep(0.05)
print(*held)
''', sys.argv[1]])
assert isinstance(take("child", "childs"), Granted)
os.write(writer, b"x")
time.sleep(0.3)
assert isinstance(take("child", "childs-later"), Granted)
os._exit(0)
"""
    assert run(tmp_path / "leases.db", code) == ["closed", "childs", "childs-later", "parents"]


def test_a_fork_in_the_middle_of_a_transaction_leaves_the_child_without_the_file(
    tmp_path: Path,
) -> None:
    code = """
pool = engine.store().file
link = pool.borrow()
link.execute("BEGIN IMMEDIATE")
reader, writer = os.pipe()
child = os.fork()
if not child:
    try:
        take()
    except StoreError as error:
        os.write(writer, f"{error.permanent} {'forked' in str(error)}".encode())
    raise SystemExit
os.waitpid(child, 0)
print(os.read(reader, 100).decode())
link.execute("COMMIT")
pool.put_back(link)
print(type(take()).__name__)
"""
    assert run(tmp_path / "leases.db", code) == ["True", "True", "Granted"]


def test_a_child_never_closes_what_its_parent_has_open(tmp_path: Path) -> None:
    code = """
import gc, sqlite3
link = engine.store().file.borrow()
link.execute("BEGIN IMMEDIATE")
child = os.fork()
if not child:
    del store, engine, link
    gc.collect()
    raise SystemExit  # with all finalisers
os.waitpid(child, 0)
try:
    sqlite3.connect(sys.argv[1], timeout=0).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    print(*str(error).split())
link.execute("COMMIT")
print(os.path.exists(sys.argv[1] + "-wal"))
"""
    assert run(tmp_path / "leases.db", code) == ["database", "is", "locked", "True"]


def test_a_child_that_ends_after_its_parent_does_not_close_the_parents_connection(
    tmp_path: Path,
) -> None:
    # A last close would copy and delete a log that may be somebody else's by then.
    code = """
link = engine.store().file.borrow()
link.execute("BEGIN IMMEDIATE")
reader, writer = os.pipe()
if os.fork():
    os._exit(0)
os.close(writer)
time.sleep(0.2)
raise SystemExit  # with all finalisers
"""
    run(tmp_path / "leases.db", code)
    assert (tmp_path / "leases.db-wal").exists()


@pytest.mark.parametrize("noticed", [True, False])
def test_a_removed_log_is_not_copied_over_what_others_wrote_since(
    tmp_path: Path, *, noticed: bool
) -> None:
    path = tmp_path / "leases.db"
    others = """
for n in range(30):
    got = take(f"{os.getpid()} {n}")
    store.give(key, f"{os.getpid()} {n}", None, soon())
print(got.token)
store.close()
"""
    store = SqliteEngine(path).store()
    for n in range(40):
        store.take(Key("default", f"ours{n}"), "a", Ask(10.0, "me"), clock.now() + 5.0)
    run(path, others)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink()
    (last,) = run(path, others)
    if noticed:
        time.sleep(0.2)
        with pytest.raises(StoreUnavailable, match="restart this process"):
            store.read(KEY, clock.now() + 5.0)
    store.close()
    (following,) = run(path, others)
    assert int(following) > int(last)


def test_what_the_parent_held_is_gone_for_nobody(tmp_path: Path) -> None:
    code = """
got = take("parent")
child = os.fork()
if not child:
    os._exit(isinstance(take("child"), Refused))
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
print(*store.renew([Renewal(key, "parent", got.token, 10.0, got.epoch)], soon()))
"""
    assert run(tmp_path / "leases.db", code) == ["1", "Renewed(notices=())"]


def test_a_fork_waits_a_second_for_the_connections_of_all_files_together(tmp_path: Path) -> None:
    files = [SqliteFile(tmp_path / f"{number}.db") for number in range(6)]
    borrowed = [file.borrow() for file in files]
    began = clock.now()
    assert in_a_child(lambda: 0) == 0
    assert took(began) < 4.0
    for file, connection in zip(files, borrowed, strict=True):
        file.put_back(connection)
        file.close()


def test_a_child_cleans_up_although_the_fork_left_its_parents_cleaning_behind(
    tmp_path: Path,
) -> None:
    code = """
from incumbent.stores.sqlite import file
from incumbent.stores.sqlite.core import SqliteStore
file._LOG_BYTES = 100_000
begun = []
store = SqliteStore(file.SqliteFile(Path(sys.argv[1]), spawn=begun.append))
def fill_the_log(number):
    until = soon(20)
    while len(begun) < number and soon(0) < until:
        store.give(key, "a", take().token, soon())
fill_the_log(1)
child = os.fork()
if not child:
    fill_the_log(2)
    os._exit(len(begun))
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""
    assert run(tmp_path / "leases.db", code) == ["2"]


# -- time, disks, permissions ----------------------------------------------------------------

UNSHARE_TIME = ("unshare", "-T", "--boottime", "100000")


@needs(works(*UNSHARE_TIME, "true"), "this user or kernel makes no time namespaces")
def test_a_time_namespace_does_not_move_the_clock_of_the_leases(tmp_path: Path) -> None:
    code = """
from incumbent.stores.sqlite.host import this_host
print(this_host().now(), this_host().boot_id, time.clock_gettime(time.CLOCK_BOOTTIME))
print(type(take("inside")).__name__)
"""
    path = tmp_path / "leases.db"
    engine = SqliteEngine(path)
    outside = engine.store().take(KEY, "outside", Ask(60.0, "me"), clock.now() + 5)
    assert isinstance(outside, Granted)
    now, boot_id, shifted, outcome = run(path, code, *UNSHARE_TIME)
    engine.store().close()
    assert boot_id == this_host().boot_id
    assert float(shifted) - clock.now() > 99_000
    assert abs(float(now) - this_host().now()) < 10
    assert outcome == "Refused"


@pytest.mark.left(tiers.LONG)
@needs(bool(shutil.which("strace")), "strace is not here to count the syncs")
def test_a_pair_waits_for_no_disk_and_a_reservation_does(tmp_path: Path) -> None:
    code = """
def mark(name):
    os.access(f"/MARK/{name}", os.F_OK)
mark("opening")
got = take()
store.give(key, "a", got.token, soon())
def pairs(number):
    for _ in range(number):
        got = take()
        store.give(key, "a", got.token, soon())
mark("hot")
pairs(300)
mark("other")
second = SqliteEngine(Path(sys.argv[1])).store()
mark("reopening")
second.take(Key("default", "b"), "b", Ask(1.0, "me"), soon())
link = engine.store().file.borrow()
link.execute("UPDATE state SET reserved = floor")
third = SqliteEngine(Path(sys.argv[1])).store()
mark("reserving")
third.take(Key("default", "c"), "c", Ask(1.0, "me"), soon())
mark("long")
pairs(3000)
mark("end")
"""
    log = tmp_path / "strace"
    trace = ("strace", "-f", "-o", str(log), "-e", "trace=fsync,fdatasync,access")
    run(tmp_path / "leases.db", code, *trace)
    syncs = count_syncs(log.read_text())
    assert syncs["opening"] >= 1
    assert syncs["hot"] == 0
    assert syncs["upkeep"] >= 2  # the log was copied, beside the work
    assert syncs["reopening"] == 0
    assert syncs["reserving"] >= 1
    assert syncs["long"] <= 5  # the header of a log that began anew, in 6000 operations


def count_syncs(log: str) -> Counter[str]:
    """Of the main thread by the mark before them; of all others as "upkeep"."""
    main = log.split(None, 1)[0]
    found: Counter[str] = Counter()
    mark = ""
    for line in log.splitlines():
        thread, call = line.split(None, 1)
        if "/MARK/" in call:
            mark = call.partition("/MARK/")[2].partition('"')[0]
        elif call.startswith(("fsync", "fdatasync")):
            found[mark if thread == main else "upkeep"] += 1
    return found


SMALL_DISK = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=256k none "$0" && exec "$@"')


@needs(works("unshare", "-m", "true"), "this user cannot mount a small disk to fill")
def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    code = """
from incumbent.stores.findings import state_of_store
from incumbent.stores.sqlite.engine import findings
got = take("holder", "held")
Path(sys.argv[1] + ".filler").write_bytes(b"")
with open(sys.argv[1] + ".filler", "ab", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(512))
    except OSError:
        pass
last = ""
for number in range(500):
    try:
        take("a", "x" * 100 + str(number))
    except StoreError as error:
        last = type(error).__name__, "free some space" in str(error)
        break
print(*last, state_of_store(findings(store, soon())).word.replace(" ", "-"))
os.unlink(sys.argv[1] + ".filler")
print(type(take("a", "after")).__name__)
held = store.read(Key("default", "held"), soon()).holdings
print(held[0].claim)
"""
    path = tmp_path / "leases.db"
    printed = run(path, code, *SMALL_DISK, str(tmp_path))
    assert printed == ["StoreUnavailable", "True", "cannot-tell", "Granted", "holder"]


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_file_that_may_not_be_written_is_refused_for_good(tmp_path: Path, what: str) -> None:
    # Root may write anywhere, so the process becomes somebody else first.
    code = f"""
if {what == "file"}:
    take()
    store.close()
    os.chmod(sys.argv[1], 0o444)
os.chmod(Path(sys.argv[1]).parent, 0o555)
if os.geteuid() == 0:
    os.setuid(65534)
try:
    take("b")
except StoreError as error:
    print(type(error).__name__, error.permanent, "write" in str(error))
"""
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    printed = run(home / "leases.db", code)
    home.chmod(0o755)
    assert printed == ["StoreUnavailable", "True", "True"]


# -- all together ----------------------------------------------------------------------------

COUNTS = """
import asyncio, secrets
def once(counter):
    counter.write_text(str(int(counter.read_text()) + 1))
def blocking():
    for _ in range(20):
        claim = secrets.token_hex(8)
        while not isinstance(got := store.take(key, claim, Ask(30.0, "me"), soon(20)), Granted):
            store.wait_change(key, got.seen, soon(0.05))
        once(counter)
        store.give(key, claim, got.token, soon(20))
async def asynchronous():
    side = engine.async_store()
    for _ in range(20):
        claim = secrets.token_hex(8)
        ask = Ask(30.0, "me")
        while not isinstance(got := await side.take(key, claim, ask, soon(20)), Granted):
            await side.wait_change(key, got.seen, soon(0.05))
        once(counter)
        await side.give(key, claim, got.token, soon(20))
async def both():
    await asyncio.gather(asynchronous(), asynchronous())
counter = Path(sys.argv[1] + ".counter")
threads = [threading.Thread(target=blocking) for _ in range(2)]
for thread in threads:
    thread.start()
asyncio.run(both())
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
def test_processes_threads_and_loops_exclude_one_another(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    counter = Path(f"{path}.counter")
    counter.write_text("0")
    workers = [start(path, COUNTS) for _ in range(3)]
    for worker in workers:
        worker.communicate(timeout=50)
        assert worker.returncode == 0
    assert counter.read_text() == str(3 * 4 * 20)


def test_processes_that_start_at_once_make_one_file(tmp_path: Path) -> None:
    code = "print(type(take(str(os.getpid()))).__name__)"
    workers = [start(tmp_path / "leases.db", code) for _ in range(6)]
    outcomes = Counter(worker.communicate(timeout=60)[0].strip() for worker in workers)
    assert outcomes == {"Granted": 1, "Refused": 5}
    assert (tmp_path / "leases.db").stat().st_mode & 0o777 == 0o600


def test_a_holder_killed_before_its_first_checkpoint_still_holds(tmp_path: Path) -> None:
    code = 'take(); print("held", flush=True); time.sleep(60)'
    holder = start(tmp_path / "leases.db", code)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    assert run(tmp_path / "leases.db", 'print(type(take("b")).__name__)') == ["Refused"]
