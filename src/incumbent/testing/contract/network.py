"""A World behind proxies: every fault of a network, what it costs, and other clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

from incumbent.stores.base import Engine
from incumbent.testing.clients import other_process, resolver_stands_still
from incumbent.testing.contract.bench import Hook, World
from incumbent.testing.proxy import FaultProxy

__all__ = ["NetworkWorld"]

_HERE, _NAMED = "127.0.0.1", "localhost"


class NetworkWorld(World):
    """A store whose `url` leads through `proxies`, one before each of its servers.

    `open_store` makes an engine of such a URL; pickle must find it by its name. `changes` is
    found only in requests that change something: see `World.lose_reply`.
    """

    hooks: ClassVar[frozenset[Hook]] = frozenset(
        {"cut", "lose_reply", "hold_reply", "requests", "other_client", "slow_names"}
    )
    """What it implements; a suite declares them."""

    def __init__(
        self,
        open_store: Callable[[str], Engine],
        url: str,
        proxies: Sequence[FaultProxy],
        changes: bytes | re.Pattern[bytes],
    ) -> None:
        super().__init__(open_store(url))
        self.proxies = proxies
        self._open_store = open_store
        self._url = url
        self._changes = changes

    @contextmanager
    def cut(self) -> Iterator[None]:
        with self._faults(FaultProxy.refuse):
            yield

    @contextmanager
    def lose_reply(self, times: int = 10) -> Iterator[None]:
        with self._faults(lambda proxy: proxy.close_after_request(self._changes, times=times)):
            yield

    @contextmanager
    def hold_reply(self) -> Iterator[Callable[[], bool]]:
        with self._faults(FaultProxy.hold_replies):
            yield lambda: any(proxy.holds for proxy in self.proxies)

    def requests(self) -> int:
        return max(proxy.round_trips for proxy in self.proxies)

    def other_client(self, clock_offset: float = 0.0) -> Engine:
        if clock_offset == 0.0:
            return self._open_store(self._url)
        return other_process(partial(self._open_store, self._url), clock_offset=clock_offset)

    @contextmanager
    def slow_names(self) -> Iterator[Engine]:
        with resolver_stands_still():
            yield self._open_store(self._url.replace(_HERE, _NAMED))

    @contextmanager
    def _faults(self, cause: Callable[[FaultProxy], None]) -> Iterator[None]:
        for proxy in self.proxies:
            cause(proxy)
        try:
            yield
        finally:
            for proxy in self.proxies:
                proxy.heal()
