"""Misspelt names, settings that there are not, and calls of the other side."""

import incumbent
from incumbent import Lokc  # E: attr-defined reportAttributeAccessIssue

incumbent.Lokc("job")  # E: attr-defined reportAttributeAccessIssue
incumbent.Lock("job", tll=5)  # E: call-arg reportCallIssue
incumbent.Lock("job", ttl=[5])  # E: arg-type reportArgumentType
incumbent.Lock("job", if_lost="ignore")  # E: arg-type reportArgumentType
incumbent.Semaphore("job")  # E: call-arg reportCallIssue
incumbent.Semaphore("job", permits="4")  # E: arg-type reportArgumentType
incumbent.ReadWriteLock("job", permits=4)  # E: call-arg reportCallIssue
incumbent.Client(ttl=None)  # E: arg-type reportArgumentType


def blocking(lock: incumbent.Lock) -> None:
    lock.try_acquire().release()  # E: union-attr reportOptionalMemberAccess
    lock.acquire().relaese()  # E: attr-defined reportAttributeAccessIssue
    lock.held_by().upper()  # E: union-attr reportOptionalMemberAccess


async def asynchronous(lock: incumbent.AsyncLock) -> None:
    with lock:  # E: attr-defined reportGeneralTypeIssues
        ...
    (await lock.try_acquire()).fencing_token  # E: union-attr reportOptionalMemberAccess


def follows(term: incumbent.AsyncTerm) -> None: ...


incumbent.Election("switch", on_elected=follows)  # E: arg-type reportArgumentType
incumbent.Election("switch", permits="3")  # E: arg-type reportArgumentType
incumbent.Client().election("switch", on_elected=follows)  # E: arg-type reportArgumentType
