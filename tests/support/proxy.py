"""The proxy of `incumbent.testing`, which says what clients send through any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from incumbent.testing import proxy
from incumbent.testing.proxy import ProxiedLink, Way

__all__ = ["FaultProxy", "ProxiedLink", "Way", "requests_sent"]


class FaultProxy(proxy.FaultProxy):
    """Before a Redis, or any other server."""

    tap: ClassVar[Callable[[object, bytes], None] | None] = None
    """Receives what clients send, with the connection; see tests/recorded."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def sent(self, link: ProxiedLink, chunk: bytes) -> None:
        if FaultProxy.tap is not None:
            FaultProxy.tap(link, chunk)


@contextmanager
def requests_sent() -> Iterator[list[bytes]]:
    """What clients send through proxies meanwhile, a write at a time."""
    sent: list[bytes] = []
    FaultProxy.tap = lambda _, chunk: sent.append(chunk)
    try:
        yield sent
    finally:
        FaultProxy.tap = None
