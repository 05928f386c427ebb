"""Objects in a real etcd, as an API server keeps them: one key each, `resourceVersion` is its
mod_revision.

By the JSON gateway of etcd. Its numbers are texts there, and what is 0 or false is left out.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.support.kubernetes.fake.statuses import Json, internal

__all__ = ["Change", "Compacted", "Listed", "Registry", "Stored"]

WITHIN = aiohttp.ClientTimeout(total=10)


class Compacted(Exception):
    """The revision asked for is no longer there."""


@dataclass(frozen=True)
class Stored:
    """One object, and the revision that wrote it."""

    key: str
    text: str
    revision: int

    @property
    def object(self) -> Json:
        made: Json = json.loads(self.text)
        made["metadata"]["resourceVersion"] = str(self.revision)
        return made


@dataclass(frozen=True)
class Listed:
    found: list[Stored]
    revision: int
    count: int
    """How many there are, whatever the limit."""


@dataclass(frozen=True)
class Change:
    """One write: `now` is None for a deletion, `before` for a creation."""

    key: str
    now: Stored | None
    before: Stored | None
    revision: int


class Registry:
    def __init__(self, endpoint: str) -> None:
        self._http = endpoint
        self._session: aiohttp.ClientSession | None = None

    async def get(self, key: str) -> Stored | None:
        found = (await self._range({"key": _b64(key)})).found
        return found[0] if found else None

    async def all_below(
        self, prefix: str, *, start: str = "", limit: int = 0, revision: int = 0
    ) -> Listed:
        """Raises Compacted."""
        asked = {"key": _b64(start or prefix), "range_end": _b64(_end_of(prefix))}
        return await self._range(asked | {"limit": str(limit), "revision": str(revision)})

    async def create(self, key: str, made: Json) -> Stored | None:
        """None if there is one."""
        return await self._put(key, made, {"target": "CREATE", "create_revision": "0"})

    async def replace(self, old: Stored, made: Json) -> Stored | None:
        """None if another write came first."""
        is_same = {"target": "MOD", "mod_revision": str(old.revision)}
        return await self._put(old.key, made, is_same)

    async def delete(self, old: Stored) -> int | None:
        """The revision of the deletion; None if another write came first."""
        is_same = {"target": "MOD", "mod_revision": str(old.revision), "key": _b64(old.key)}
        deletion = {"request_delete_range": {"key": _b64(old.key)}}
        said = await self._ask("kv/txn", {"compare": [is_same], "success": [deletion]})
        return int(said["header"]["revision"]) if said.get("succeeded") else None

    async def watch(self, prefix: str, start: int) -> AsyncGenerator[list[Change] | int]:
        """What is written from revision `start` on; numbers tell how far it has looked.

        Raises Compacted, and aiohttp.ClientError where etcd is gone.
        """
        asked = {"key": _b64(prefix), "range_end": _b64(_end_of(prefix))}
        asked |= {"start_revision": str(start)}
        body = {"create_request": asked | {"prev_kv": True, "progress_notify": True}}
        forever = aiohttp.ClientTimeout(total=None, sock_connect=5)
        url = f"{self._http}/v3/watch"
        async with self._opened().post(url, json=body, timeout=forever) as stream:
            rest = b""
            async for piece in stream.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield _changes(json.loads(line))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    # -- inside

    async def _range(self, asked: Json) -> Listed:
        said = await self._ask("kv/range", asked)
        found = [_stored(kv) for kv in said.get("kvs", [])]
        return Listed(found, int(said["header"]["revision"]), int(said.get("count", "0")))

    async def _put(self, key: str, made: Json, compare: Json) -> Stored | None:
        # A resourceVersion is of the key, not of its value.
        kept = {**made, "metadata": {**made["metadata"]}}
        kept["metadata"].pop("resourceVersion", None)
        text = json.dumps(kept, separators=(",", ":"), ensure_ascii=False)
        put = {"request_put": {"key": _b64(key), "value": _b64(text)}}
        said = await self._ask(
            "kv/txn", {"compare": [compare | {"key": _b64(key)}], "success": [put]}
        )
        return Stored(key, text, int(said["header"]["revision"])) if said.get("succeeded") else None

    async def _ask(self, what: str, body: Json) -> Json:
        try:
            url = f"{self._http}/v3/{what}"
            async with self._opened().post(url, json=body, timeout=WITHIN) as answer:
                said: Json = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError):
            raise internal("etcdserver: request timed out") from None
        if answer.status != 200:
            why = str(said.get("message") or said.get("error"))
            raise Compacted if "compacted" in why else internal(why)
        return said

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # As many as there are watches and requests at once.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, read_bufsize=2**20)
        return self._session


def _changes(line: Json) -> list[Change] | int:
    if "error" in line:
        raise aiohttp.ClientError(line["error"])
    result = line["result"]
    if result.get("canceled"):
        raise Compacted if result.get("compact_revision") else aiohttp.ClientError("canceled")
    if not result.get("events"):
        return int(result["header"]["revision"])
    return [_change(event) for event in result["events"]]


def _change(event: Json) -> Change:
    kv = event["kv"]
    before = _stored(event["prev_kv"]) if event.get("prev_kv") else None
    gone = event.get("type") == "DELETE"
    now = None if gone else _stored(kv)
    return Change(_text(kv["key"]), now, before, int(kv["mod_revision"]))


def _stored(kv: dict[str, Any]) -> Stored:
    """Of an object that is there."""
    return Stored(_text(kv["key"]), _text(kv["value"]), int(kv["mod_revision"]))


def _b64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _text(b64: str) -> str:
    return b64decode(b64).decode()


def _end_of(prefix: str) -> str:
    """The first key after all that begin with `prefix`, which ends in a slash."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
