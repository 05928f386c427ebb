"""Waiting for a change on the blocking side: a waiter listens to all nodes.

What counts is a change on a majority: a release is said by every node at about the same time, and
who asked after the first word alone would find the others still held.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, Final

import hiredis

from incumbent.clock import now as _now
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.stores.quorum.dialing import Dialer
from incumbent.stores.quorum.group import Quorum
from incumbent.stores.quorum.link import Link
from incumbent.stores.quorum.reading import is_unchanged
from incumbent.stores.redis.errors import Broken

__all__ = ["LINGER", "SyncWaiter"]

LINGER: Final = 0.005
"""Seconds for which the other nodes' words are waited for after the first."""
_LEAVE_WITHIN: Final = 0.02
_CONFIRM_WITHIN: Final = 0.05
_SLICE: Final = 1.0
_IDLE_MAX: Final = 64
_FAILURES: Final = (Broken, hiredis.ProtocolError)

_Links = list["Link | None"]


class SyncWaiter:
    """Connections that listen: one to each node for each thread that waits."""

    def __init__(self, quorum: Quorum, dialer: Dialer) -> None:
        self._quorum = quorum
        self._dialer = dialer
        self._idle: list[_Links] = []

    def wait(self, key: Key, seen: str, until: float, run: Callable[[float, Any], bool]) -> None:
        """See Store.wait_change; `run` runs an operation on a panel."""
        try:
            self._wait(key, seen, until, run)
        except StoreError:
            # Once the time is over the caller looks for itself, whatever went wrong meanwhile.
            if _now() < until:
                raise

    def _wait(self, key: Key, seen: str, until: float, run: Callable[[float, Any], bool]) -> None:
        idle, quorum = self._idle, self._quorum
        try:
            links = idle.pop()
        except IndexError:
            links = [None] * len(quorum.names)
        try:
            self._dialer.fill(links, until)
            self._subscribe(links, key, until)
            if run(until, lambda panel: is_unchanged(quorum, panel, key, seen, until)):
                self._listen(links, until)
            self._unsubscribe(links, key)
        except BaseException:
            _close(links)
            raise
        if idle is self._idle and len(idle) < _IDLE_MAX:
            idle.append(links)
        else:
            _close(links)

    def let_go(self) -> None:
        """Close what is not in use."""
        idle, self._idle = self._idle, []
        for links in idle:
            _close(links)

    def forget(self) -> None:
        """In a fork's child: the dialer gives the descriptors back."""
        self._idle = []

    def _subscribe(self, links: _Links, key: Key, until: float) -> None:
        request = self._quorum.dialect.subscribe(key)
        for node, link in enumerate(links):
            if link is not None:
                link.used = _now()
                self._try(links, node, lambda it: it.send(request, until))
        by = min(until, _now() + _CONFIRM_WITHIN)
        for node in range(len(links)):
            self._try(links, node, lambda it: self._confirm(it, key, by))
        if not any(links):
            why = next((it.why for it in self._dialer.nodes if it.why is not None), None)
            said = why or f"no node of {self._quorum.where} confirms"
            raise StoreUnavailable(f"nobody of {self._quorum.where} can be listened to: {said}")

    def _confirm(self, link: Link, key: Key, by: float) -> None:
        # Before that, what an earlier listener left may come.
        while not self._quorum.dialect.listens(link.read(by), key):
            pass

    def _try(self, links: _Links, node: int, do: Callable[[Link], object]) -> None:
        link = links[node]
        if link is None:
            return
        try:
            do(link)
        except _FAILURES:
            links[node] = None
            link.close()

    def _listen(self, links: _Links, until: float) -> None:
        """Return after a word of a majority, or a while after the first, or at `until`."""
        told: set[int] = set()
        while (left := until - _now()) > 0 and len(told) < self._quorum.need:
            silent = [n for n, it in enumerate(links) if it is not None and n not in told]
            if not silent:
                return
            for node in _ready(links, silent, min(left, _SLICE)):
                told.add(node)
                self._try(links, node, lambda it: it.read(0.0))
                until = min(until, _now() + LINGER)

    def _unsubscribe(self, links: _Links, key: Key) -> None:
        request = self._quorum.dialect.unsubscribe(key)
        by = _now() + _LEAVE_WITHIN
        for node, link in enumerate(links):
            if link is not None:
                link.used = _now()
                self._try(links, node, lambda it: it.send(request, by))


def _ready(links: _Links, nodes: Sequence[int], seconds: float) -> list[int]:
    poll, by_fd = select.poll(), dict[int, int]()
    for node in nodes:
        link = links[node]
        if link is not None:
            by_fd[link.fileno()] = node
            poll.register(link.fileno(), select.POLLIN)
    return [by_fd[fd] for fd, _ in poll.poll(ceil(seconds * 1000))]


def _close(links: _Links) -> None:
    for link in links:
        if link is not None:
            link.close()
