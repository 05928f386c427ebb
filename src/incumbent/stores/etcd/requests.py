"""Requests of etcd: the words of a transaction, and what each reply tells besides. Pure.

A *program* is a generator: it yields requests, is sent their replies, and returns an outcome. An
error of a request is raised where the program waits for its reply. The gateway wants keys and
values in base64, and numbers as digits; keys become base64 here, values in `records.packed`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import ceil
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from incumbent.stores.etcd.records import after, b64
from incumbent.stores.url import Endpoint

__all__ = [
    "BATCH",
    "COUNT",
    "LINEARIZABLE",
    "METRICS",
    "NEWEST",
    "REPEATED",
    "TXN",
    "AsOf",
    "Reply",
    "Request",
    "Steps",
    "absent",
    "as_of",
    "attached",
    "created",
    "delete",
    "free",
    "has_value",
    "lease_request",
    "modified",
    "nested",
    "put",
    "read",
    "read_all",
    "revision_of",
    "seconds",
    "term_of",
    "transaction",
    "watch",
]

T = TypeVar("T")
Reply: TypeAlias = dict[str, Any]

BATCH: Final = 116
"""Leases compared in one transaction; etcd takes 128 comparisons (--max-txn-ops)."""
REPEATED: Final = " repeated"
"""Of a reply: whether an earlier try of its request was perhaps carried out."""
TXN: Final = "/v3/kv/txn"
METRICS: Final = "/metrics"
LINEARIZABLE: Final = frozenset({TXN, "/v3/kv/range"})
COUNT: Final = ',"count_only":true'
NEWEST: Final = ',"sort_order":"DESCEND","sort_target":"MOD","limit":"1","keys_only":true'


class Request(NamedTuple):
    """One request.

    `repeatable`: another member may be asked after a doubt. `marker`: the value of the one that
    must still be known when the reply comes. `endpoint`: this member is asked, and no other.
    """

    path: str
    body: bytes = b"{}"
    repeatable: bool = True
    marker: str = ""
    endpoint: Endpoint | None = None


Steps: TypeAlias = Generator[Request, Any, T]
"""A program."""


# -- what a reply tells ---------------------------------------------------------------------------


def revision_of(reply: Reply) -> int:
    """At which revision the cluster answered."""
    return int(reply["header"].get("revision", 0))


def term_of(reply: Reply) -> str:
    """In which term the cluster answered."""
    return str(reply["header"].get("raft_term", ""))


class AsOf(NamedTuple):
    """Which state of the cluster an answer is of: as long as it is the same, so is every key."""

    cluster: str
    term: str
    revision: int
    dialled: int


def as_of(reply: Reply, dialled: int = 0) -> AsOf | None:
    """Of which state the cluster answered; None: it does not say.

    `dialled`: how many connections were made until then; a new one may lead to another state.
    """
    revision = revision_of(reply)
    cluster = str(reply["header"].get("cluster_id", ""))
    return AsOf(cluster, term_of(reply), revision, dialled) if revision else None


# -- comparisons ----------------------------------------------------------------------------------


def absent(key: str) -> str:
    """There is no such key."""
    return f'{{"key":"{b64(key)}","range_end":"","target":"CREATE","create_revision":"0"}}'


def free(prefix: str) -> str:
    """There is no key that begins with `prefix`."""
    start, end = b64(prefix), b64(after(prefix))
    return f'{{"key":"{start}","range_end":"{end}","target":"CREATE","create_revision":"0"}}'


def created(key: str, revision: int) -> str:
    """The key is there since that revision."""
    return f'{{"key":"{b64(key)}","target":"CREATE","create_revision":"{revision}"}}'


def modified(key: str, revision: int) -> str:
    """The key was last written at that revision; 0 is one that is not there."""
    return f'{{"key":"{b64(key)}","target":"MOD","mod_revision":"{revision}"}}'


def attached(key: str, lease: str) -> str:
    """The key is attached to that etcd lease."""
    return f'{{"key":"{b64(key)}","target":"LEASE","lease":"{lease}"}}'


def has_value(key: str, value: str) -> str:
    """The key has that value (base64)."""
    return f'{{"key":"{b64(key)}","target":"VALUE","value":"{value}"}}'


# -- operations -----------------------------------------------------------------------------------


def put(key: str, value: str, lease: str = "0") -> str:
    """Write `value` (base64), attached to an etcd lease."""
    return f'{{"request_put":{{"key":"{b64(key)}","value":"{value}","lease":"{lease}"}}}}'


def delete(key: str) -> str:
    return f'{{"request_delete_range":{{"key":"{b64(key)}","range_end":""}}}}'


def read(key: str, end: str = "", more: str = "") -> str:
    """Read a key, or a range; `more` holds further options, each with a comma before it."""
    return f'{{"request_range":{{"key":"{b64(key)}","range_end":"{b64(end)}"{more}}}}}'


def read_all(prefix: str, more: str = "") -> str:
    """Read all keys that begin with `prefix`."""
    return read(prefix, after(prefix), more)


def nested(compare: Sequence[str], success: Sequence[str]) -> str:
    """A transaction within one."""
    return f'{{"request_txn":{_transaction(compare, success)}}}'


def _transaction(
    compare: Sequence[str], success: Sequence[str], failure: Sequence[str] = ()
) -> str:
    return (
        f'{{"compare":[{",".join(compare)}],"success":[{",".join(success)}],'
        f'"failure":[{",".join(failure)}]}}'
    )


# -- requests -------------------------------------------------------------------------------------


def transaction(
    success: Sequence[str],
    failure: Sequence[str] = (),
    *,
    where: Sequence[str] = (),
    repeatable: bool = True,
    marker: str = "",
    endpoint: Endpoint | None = None,
) -> Request:
    """Carry out `success` if all comparisons in `where` hold, else `failure`."""
    body = _transaction(where, success, failure).encode()
    return Request(TXN, body, repeatable, marker, endpoint)


def lease_request(what: str, lease: str) -> Request:
    """`keepalive`, `timetolive` or `revoke` an etcd lease."""
    return Request(f"/v3/lease/{what}", b'{"ID":"%b"}' % lease.encode())


def watch(ranges: Sequence[tuple[str, str]], revision: int) -> Request:
    """One stream for all that changes in these ranges, from `revision` on."""
    body = "".join(
        f'{{"create_request":{{"key":"{b64(start)}","range_end":"{b64(end)}",'
        f'"start_revision":"{revision}","watch_id":"{index}"}}}}'
        for index, (start, end) in enumerate(ranges, 1)
    )
    return Request("/v3/watch", body.encode())


def seconds(ttl: float) -> int:
    """The etcd lease for a ttl: whole seconds, never fewer."""
    return max(1, ceil(ttl))
