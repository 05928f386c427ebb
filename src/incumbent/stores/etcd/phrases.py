"""The words of etcd's transactions, as JSON texts. Keys come in base64, numbers as digits."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "absent",
    "attached",
    "created",
    "delete",
    "modified",
    "nested",
    "newest",
    "put",
    "read",
    "same",
    "transaction",
]


def absent(key: str, end: str = "") -> str:
    """A comparison: there is no such key, or none in the range."""
    return f'{{"key":"{key}","range_end":"{end}","target":"CREATE","create_revision":"0"}}'


def created(key: str, revision: int) -> str:
    """A comparison: the key is there since that revision."""
    return f'{{"key":"{key}","target":"CREATE","create_revision":"{revision}"}}'


def modified(key: str, revision: int | str) -> str:
    """A comparison: the key was last written at that revision."""
    return f'{{"key":"{key}","target":"MOD","mod_revision":"{revision}"}}'


def attached(key: str, lease: str) -> str:
    """A comparison: the key ends with this etcd lease."""
    return f'{{"key":"{key}","target":"LEASE","lease":"{lease}"}}'


def same(key: str, value: str) -> str:
    """A comparison: the key has this value."""
    return f'{{"key":"{key}","target":"VALUE","value":"{value}"}}'


def put(key: str, value: str, lease: str = "0") -> str:
    """Write `value` (base64), attached to an etcd lease."""
    return f'{{"request_put":{{"key":"{key}","value":"{value}","lease":"{lease}"}}}}'


def delete(key: str, end: str = "") -> str:
    """Remove a key, or a range."""
    return f'{{"request_delete_range":{{"key":"{key}","range_end":"{end}"}}}}'


def read(key: str, end: str = "", more: str = "") -> str:
    """Read a key, or a range; `more` holds further options, each with a comma before it."""
    return f'{{"request_range":{{"key":"{key}","range_end":"{end}"{more}}}}}'


def newest(key: str, end: str) -> str:
    """Read which key of the range was written last."""
    order = ',"sort_order":"DESCEND","sort_target":"MOD","limit":"1","keys_only":true'
    return read(key, end, order)


def nested(compare: Sequence[str], success: Sequence[str], failure: Sequence[str] = ()) -> str:
    """A transaction within one."""
    return f'{{"request_txn":{_whole(compare, success, failure)}}}'


def transaction(
    compare: Sequence[str], success: Sequence[str], failure: Sequence[str] = ()
) -> bytes:
    """The body of a request to /v3/kv/txn."""
    return _whole(compare, success, failure).encode()


def _whole(compare: Sequence[str], success: Sequence[str], failure: Sequence[str]) -> str:
    return (
        f'{{"compare":[{",".join(compare)}],"success":[{",".join(success)}],'
        f'"failure":[{",".join(failure)}]}}'
    )
