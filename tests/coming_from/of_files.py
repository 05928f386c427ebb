"""filelock, portalocker."""

from __future__ import annotations

from tests.coming_from.cases import LIBRARIES, Library, row
from tests.coming_from.sides import Both, Outcome

LIBRARIES["filelock"] = Library(
    lambda servers: "from filelock import AsyncFileLock, FileLock",
    Outcome("lock.acquire()", "lease = lock.acquire()"),
    lambda servers: f"sqlite://{servers.folder}/leases.db",
)


@row("filelock", 'lock = FileLock("job.lock")')
def a_lock_of_this_host(both: Both) -> None:
    both.take()
    assert both.each("lock.is_locked", "lock.owned()") == ("True", "True")


@row("filelock", "lock.acquire(timeout=0.2)")
def waiting_for_a_time(both: Both) -> None:
    with both.held():
        assert both.run() == ("raises Timeout", "raises AcquireTimeout")
    assert both.run() == ("AcquireReturnProxy", "Lease")


@row("filelock", "lock.acquire(blocking=False)")
def trying_once(both: Both) -> None:
    with both.held():
        assert both.run() == ("raises Timeout", "raises NotAcquired")
    assert both.run() == ("AcquireReturnProxy", "Lease")


@row("filelock", "with lock:")
def a_body(both: Both) -> None:
    assert both.run() == ("'ran'", "'ran'")


@row("filelock", "@lock")
def a_function(both: Both) -> None:
    assert both.run() == ("None", "None")
    assert both.each("work()", "work()") == ("'ran'", "'ran'")


@row("filelock", "lock.is_locked")
def whether_this_object_holds_it(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "False"), "others are not looked at"
    both.take()
    assert both.run() == ("True", "True")


@row("filelock", "lock.release()")
def releasing(both: Both) -> None:
    both.take()
    assert both.run() == ("None", "True")
    assert both.run() == ("None", "raises AlreadyReleased")


@row("filelock", "with lock, lock:")
def taking_it_twice(both: Both) -> None:
    assert both.run() == ("'ran'", "'ran'")
    assert both.each("with lock, lock:", "with lock, lock:") == ("'ran'", "'ran'")
    plain = 'lock = Lock("job")\nwith lock, lock:'
    assert both.each("with lock, lock:", plain) == ("'ran'", "raises Misuse")


@row("filelock", 'async with AsyncFileLock("job.lock"):')
def a_coroutine(both: Both) -> None:
    assert both.run() == ("'ran'", "'ran'")


LIBRARIES["portalocker"] = Library(
    lambda servers: "import portalocker",
    LIBRARIES["filelock"].take,
    LIBRARIES["filelock"].store,
    environment="today",
)


@row("portalocker", 'lock = portalocker.Lock("job.lock", timeout=1)')
def an_open_file_is_the_lock(both: Both) -> None:
    assert both.made == ("Lock", "Lock")


@row("portalocker", "lock.acquire()")
def waiting_for_the_file(both: Both) -> None:
    with both.held():
        assert both.run() == ("raises AlreadyLocked", "raises AcquireTimeout")
    assert both.run() == ("TextIOWrapper", "Lease")


@row("portalocker", "lock.acquire(fail_when_locked=True)")
def trying_the_file_once(both: Both) -> None:
    with both.held():
        assert both.run() == ("raises AlreadyLocked", "raises NotAcquired")
    assert both.run() == ("TextIOWrapper", "Lease")


@row("portalocker", "with lock as file:")
def a_body_with_the_file(both: Both) -> None:
    assert both.run() == ("'ran'", "'ran'")


@row("portalocker", "lock.release()")
def releasing_the_file(both: Both) -> None:
    both.take()
    assert both.run() == ("None", "True")
    with both.held():
        pass


@row("portalocker", 'lock = portalocker.NamedBoundedSemaphore(2, "job", directory=".", timeout=1)')
def slots_of_files(both: Both) -> None:
    assert both.run() == ("NamedBoundedSemaphore", "Semaphore")
    both.take()
    one_more = Outcome(
        'portalocker.NamedBoundedSemaphore(2, "job", directory=".", timeout=0.1).acquire()',
        'Semaphore("job", 2, timeout=0.1).acquire()',
    )
    assert both.each(*one_more) == ("Lock", "Lease")
    assert both.each(*one_more) == ("raises AlreadyLocked", "raises AcquireTimeout")
