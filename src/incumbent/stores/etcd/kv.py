"""Keys, values and requests of etcd: the words of a transaction, and what each reply tells. Pure.

A *program* is a generator: it yields requests, is sent their replies, and returns an outcome. An
error of a request is raised where the program waits for its reply. The gateway wants keys and
values in base64, and numbers as digits.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import b2a_base64
from collections.abc import Generator, Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from incumbent.stores.url import Endpoint

T = TypeVar("T")
_quoted: Final = json.encoder.encode_basestring_ascii
Reply: TypeAlias = dict[str, Any]
AsOf: TypeAlias = tuple[str, str, int, int]

BATCH: Final = 116
"""Leases compared in one transaction; etcd takes 128 comparisons (--max-txn-ops)."""
REPEATED: Final = " repeated"
"""Of a reply: whether an earlier try of its request was perhaps carried out."""
TXN: Final = "/v3/kv/txn"
LINEARIZABLE: Final = frozenset({TXN, "/v3/kv/range"})
COUNT: Final = ',"count_only":true'
NEWEST: Final = ',"sort_order":"DESCEND","sort_target":"MOD","limit":"1","keys_only":true'


class Request(NamedTuple):
    """One request; without a body it is a GET, whose reply is what was read.

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


def as_of(reply: Reply, dialled: int = 0) -> AsOf | None:
    """Which state of the cluster an answer is of; None: it does not say.

    As long as it is the same, so is every key. `dialled`: how many connections were made until
    then; a new one may lead to another state.
    """
    revision = revision_of(reply)
    cluster = str(reply["header"].get("cluster_id", ""))
    return (cluster, term_of(reply), revision, dialled) if revision else None


# -- keys and values ------------------------------------------------------------------------------


def b64(text: str) -> str:
    """The text as the gateway's JSON wants bytes."""
    return b2a_base64(text.encode(), newline=False).decode()


_key = lru_cache(maxsize=16_384)(b64)


def after(prefix: str) -> str:
    """The end of the range of all keys that begin with `prefix`, which ends in ASCII."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


class Entry(NamedTuple):
    """One key as the gateway answered it."""

    key: str
    value: bytes
    created: int
    modified: int
    lease: str

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a value of ours; nothing of anybody else's."""
        try:
            found = json.loads(self.value)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def value64(self) -> str:
        """The value in base64."""
        return b64encode(self.value).decode()


def count_of(response: Mapping[str, Any]) -> int:
    """How many keys there are in a range, also where it was limited to a few."""
    return int(response["response_range"].get("count", 0))


def entries_in(response: Mapping[str, Any]) -> list[Entry]:
    """The keys that a range answered, of `responses[i]`."""
    kvs = response.get("response_range", response).get("kvs", ())
    return [
        Entry(
            b64decode(kv["key"]).decode(errors="replace"),
            b64decode(kv.get("value", "")),
            int(kv["create_revision"]),
            int(kv["mod_revision"]),
            kv.get("lease", "0"),
        )
        for kv in kvs
    ]


def packed(**fields: str | float) -> str:
    """A value of ours, in base64: JSON, which is written by hand as it is quicker."""
    inside = ",".join([
        f'"{name}":{_quoted(value) if isinstance(value, str) else repr(value)}'
        for name, value in fields.items()
    ])  # fmt: skip
    return b64(f"{{{inside}}}")


# -- comparisons ----------------------------------------------------------------------------------


def absent(key: str) -> str:
    """There is no such key."""
    return f'{{"key":"{_key(key)}","range_end":"","target":"CREATE","create_revision":"0"}}'


def free(prefix: str) -> str:
    """There is no key that begins with `prefix`."""
    start, end = _key(prefix), _key(after(prefix))
    return f'{{"key":"{start}","range_end":"{end}","target":"CREATE","create_revision":"0"}}'


def created(key: str, revision: int) -> str:
    """The key is there since that revision."""
    return f'{{"key":"{_key(key)}","target":"CREATE","create_revision":"{revision}"}}'


def modified(key: str, revision: int) -> str:
    """The key was last written at that revision; 0 is one that is not there."""
    return f'{{"key":"{_key(key)}","target":"MOD","mod_revision":"{revision}"}}'


def attached(key: str, lease: str) -> str:
    """The key is attached to that etcd lease."""
    return f'{{"key":"{_key(key)}","target":"LEASE","lease":"{lease}"}}'


def has_value(key: str, value: str) -> str:
    """The key has that value (base64)."""
    return f'{{"key":"{_key(key)}","target":"VALUE","value":"{value}"}}'


# -- operations -----------------------------------------------------------------------------------


def put(key: str, value: str, lease: str = "0") -> str:
    """Write `value` (base64), attached to an etcd lease."""
    return f'{{"request_put":{{"key":"{_key(key)}","value":"{value}","lease":"{lease}"}}}}'


def delete(key: str) -> str:
    return f'{{"request_delete_range":{{"key":"{_key(key)}","range_end":""}}}}'


def read(key: str, end: str = "", more: str = "") -> str:
    """Read a key, or a range; `more` holds further options, each with a comma before it."""
    return f'{{"request_range":{{"key":"{_key(key)}","range_end":"{_key(end)}"{more}}}}}'


def read_all(prefix: str, more: str = "") -> str:
    """Read all keys that begin with `prefix`."""
    return read(prefix, after(prefix), more)


def nested(compare: Sequence[str], success: Sequence[str], failure: Sequence[str] = ()) -> str:
    """A transaction within one."""
    return f'{{"request_txn":{_transaction(compare, success, failure)}}}'


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


def lease(what: str, lease_id: str) -> Request:
    """`keepalive`, `timetolive` or `revoke` an etcd lease."""
    return Request(f"/v3/lease/{what}", b'{"ID":"%b"}' % lease_id.encode())


def watch(ranges: Sequence[tuple[str, str]], revision: int) -> Request:
    """One stream for all that changes in these ranges, from `revision` on."""
    body = "".join(
        f'{{"create_request":{{"key":"{_key(start)}","range_end":"{_key(end)}",'
        f'"start_revision":"{revision}","watch_id":"{index}"}}}}'
        for index, (start, end) in enumerate(ranges, 1)
    )
    return Request("/v3/watch", body.encode())


def seconds(ttl: float) -> int:
    """The etcd lease for a ttl: whole seconds, never fewer."""
    return max(1, ceil(ttl))
