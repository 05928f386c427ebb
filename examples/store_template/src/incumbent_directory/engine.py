"""The engine: what it can do, and its blocking and its asynchronous side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from incumbent import clock
from incumbent.errors import ConfigError
from incumbent.model import (
    Ask,
    Capabilities,
    GiveOutcome,
    Guard,
    Key,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.stores.inline import InlineAsyncStore
from incumbent_directory import rules
from incumbent_directory.files import Files
from incumbent_directory.rules import Moment

__all__ = ["DirectoryEngine", "DirectoryStore", "open_directory"]

_LOOK_EVERY = 0.01


def this_host() -> Moment:
    """Now, on the clock that all processes of this host share; its epoch is one boot."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Moment(clock.now(), clock.wall(), boot_id)


class DirectoryStore:
    """See incumbent.stores.base.Store. `moment` is handed in by tests that move clocks."""

    def __init__(self, folder: Path, moment: Callable[[], Moment]) -> None:
        self._files = Files(folder)
        self._moment = moment

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        if ask.slot is not None:
            raise _lacks("slots (once_per)")
        with self._files.locked(until):
            new, outcome = rules.take(self._files.read(key), claim, ask, self._moment())
            if new is not None:
                self._files.write(key, new)
            return outcome

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        with self._files.locked(until):
            return [self._renew(renewal) for renewal in renewals]

    def _renew(self, renewal: Renewal) -> RenewOutcome:
        new, outcome = rules.renew(self._files.read(renewal.key), renewal, self._moment())
        if new is not None:
            self._files.write(renewal.key, new)
        return outcome

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        until: float,
        *,
        closed_for: float = 0.0,
        reserve_for: str | None = None,
        slot: str | None = None,
        shared: bool = False,
    ) -> GiveOutcome:
        """See Store.give; nothing is shared here."""
        if reserve_for is not None or slot is not None:
            raise _lacks("reservations or slots")
        with self._files.locked(until):
            old = self._files.read(key)
            new, outcome = rules.give(old, claim, token, closed_for, self._moment())
            if new is not None:
                self._files.write(key, new)
            return outcome

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put: what the capabilities do not declare is refused, never ignored."""
        raise _lacks("fields (pause, resign)")

    def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return rules.record_of(key, self._files.read(key), self._moment())

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        at = self._moment()
        return tuple(
            rules.record_of(key, document, at)
            for key, document in sorted(self._files.all(), key=lambda it: it[0])
            if key.namespace == namespace and key.name.startswith(prefix)
        )

    def changed(self, key: Key, seen: str) -> bool:
        """Whether `key` has changed since `seen`."""
        return rules.seen(self._files.read(key)) != seen

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change."""
        while not self.changed(key, seen) and (left := until - clock.now()) > 0:
            time.sleep(min(_LOOK_EVERY, left))

    def close(self) -> None:
        """See Store.close: nothing stays open between two calls."""


class AsyncDirectoryStore(InlineAsyncStore):
    """Files answer at once, so a thread would cost more than it saves; only waiting must yield."""

    def __init__(self, store: DirectoryStore) -> None:
        super().__init__(store)
        self._directory = store

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change."""
        # What another process does has no asyncio.Event to wait for.
        while not self._directory.changed(key, seen):
            if (left := until - clock.now()) <= 0:
                return
            await asyncio.sleep(min(_LOOK_EVERY, left))


class DirectoryEngine:
    """See incumbent.stores.base.Engine."""

    # Only what the suite has shown: what is declared here is tested, and the rest is refused.
    capabilities = Capabilities(
        fields=False,
        slots=False,
        notices=False,
        waits="poll",
        ttl_clock="boottime",
    )

    def __init__(self, folder: Path, moment: Callable[[], Moment] = this_host) -> None:
        self._folder = folder
        self._store = DirectoryStore(folder, moment)
        self._async_store = AsyncDirectoryStore(self._store)

    @property
    def url(self) -> str:
        """See Engine.url."""
        return f"directory://{self._folder}"

    def store(self) -> DirectoryStore:
        """See Engine.store."""
        return self._store

    def async_store(self) -> AsyncDirectoryStore:
        """See Engine.async_store."""
        return self._async_store

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        """See Engine.diagnose."""
        with self._store._files.locked(until):
            return [("ok", f"{self._folder} can be written to and locked", "")]


def open_directory(url: str) -> DirectoryEngine:
    """What the entry point names: the engine of `directory:///path`. Touches no file yet."""
    parts = urlsplit(url)
    if parts.netloc or parts.query or not parts.path.startswith("/"):
        raise ConfigError("write directory:///path: an absolute path, no options", name="store")
    return DirectoryEngine(Path(unquote(parts.path)))


def _lacks(what: str) -> ConfigError:
    return ConfigError(f"a directory: store keeps no {what}", name="store")
