"""Connections to the nodes of a quorum, made on helper threads so that no node delays another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final
from weakref import WeakSet

from incumbent.clock import now as _now
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.protocol.port import run
from incumbent.stores.quorum.link import Link
from incumbent.stores.quorum.nodes import Node, Quorum, Welcome, welcome
from incumbent.stores.redis.dial import dial_as
from incumbent.stores.redis.exchange import UNUSABLE, carry_out

__all__ = ["Dialer"]

_GRACE: Final = 0.03
"""Seconds for which a majority waits for a node that is being connected."""
_FIRST_GRACE: Final = 0.5
"""The same for a node that this process has not met yet; at most half of the time there is."""
_LONGEST: Final = 2.0
_AFRESH: Final = 0.5
"""Seconds after which another connection is begun beside one that nobody waits for."""


class Dialer:
    """Makes connections for panels, and keeps those that came too late for the panel."""

    def __init__(self, quorum: Quorum, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.links: WeakSet[Link] = WeakSet()
        self.spare: list[list[Link]] = [[] for _ in nodes]
        self.quorum = quorum
        self._busy: set[_Attempt] = set()

    def fill(self, links: list[Link | None], until: float) -> None:
        """Put connections in the empty places, as far as that goes by `until`."""
        for node, link in enumerate(links):
            if link is None:
                links[node] = self._spared(node)
        now, need = _now(), self.quorum.need
        short = sum(link is not None for link in links) < need
        arrived: SimpleQueue[_Attempt] = SimpleQueue()
        attempts = {
            node: self._adopted(node, arrived) or self._start(node, until, arrived)
            for node, link in enumerate(links)
            if link is None and self._is_worth_it(node, now, short=short)
        }
        while attempts:
            present = sum(link is not None for link in links)
            by = until if present < need else now + self._grace_of(list(attempts), until - now)
            try:
                attempt = arrived.get(timeout=max(0.0, by - _now()))
            except Empty:
                break
            del attempts[attempt.node]
            links[attempt.node] = attempt.taken()
        for attempt in attempts.values():
            links[attempt.node] = attempt.abandon()

    def _spared(self, node: int) -> Link | None:
        while self.spare[node]:
            try:
                link = self.spare[node].pop()
            except IndexError:
                break
            if not link.is_stale(trust=False):
                return link
            link.close()
        return None

    def _is_worth_it(self, node: int, now: float, *, short: bool) -> bool:
        if short:
            return True
        busy = any(it.node == node for it in list(self._busy))
        return not busy and now >= self.nodes[node].retry_at

    def _grace_of(self, nodes: list[int], left: float) -> float:
        strange = any(not self.nodes[it].met and self.nodes[it].why is None for it in nodes)
        return min(_FIRST_GRACE if strange else _GRACE, left / 2)

    def _adopted(self, node: int, arrived: SimpleQueue[_Attempt]) -> _Attempt | None:
        """One that was begun a moment ago and goes on though nobody waits for it.

        Else those who cannot wait for as long as a connection takes would begin ever more of them,
        which slows down all. But one that hangs must not keep a new one from being tried.
        """
        now = _now()
        ours = (it for it in list(self._busy) if it.node == node and now - it.began < _AFRESH)
        return next((it for it in ours if it.adopt(arrived)), None)

    def _start(self, node: int, until: float, arrived: SimpleQueue[_Attempt]) -> _Attempt:
        attempt = _Attempt(self, node, max(until, _now() + _LONGEST), arrived)
        self._busy.add(attempt)
        _begin(attempt.run)
        return attempt

    def connect_apart(
        self, node: int, until: float, arrived: Callable[[Link | StoreError], None]
    ) -> None:
        """A connection of the caller's own, on a helper thread that hands it over."""
        _begin(partial(self._connect_apart, node, until, arrived))

    def _connect_apart(
        self, node: int, until: float, arrived: Callable[[Link | StoreError], None]
    ) -> None:
        made: Link | StoreError
        try:
            made = self.connect(node, until)
        except StoreError as error:
            made = error
        except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
            made = StoreUnavailable(str(error))
        if isinstance(made, StoreError):
            self.nodes[node].failed(made)
        arrived(made)

    def connect(self, node: int, until: float) -> Link:
        """A connection that has heard what the node says of itself. Raises StoreError."""
        site = self.nodes[node].site
        link = dial_as(Link, site, until)
        self.links.add(link)
        try:
            reply: Welcome = run(carry_out(link, welcome(site), until))
        except UNUSABLE as error:
            link.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            link.close()
            raise
        now = _now()
        link.epoch, link.born = reply.facts.epoch, reply.facts.born(now)
        link.blank = reply.marker is None
        self.nodes[node].welcomed(self.quorum, reply, now)
        return link

    def done(self, attempt: _Attempt) -> None:
        """It is over."""
        self._busy.discard(attempt)

    def forget(self) -> None:
        """In a fork's child: give the descriptors back; the threads were the parent's."""
        self._busy = set()
        self.let_go()
        for link in list(self.links):
            link.close()

    def let_go(self) -> None:
        """Close what is spare."""
        spare, self.spare = self.spare, [[] for _ in self.nodes]
        for links in spare:
            for link in links:
                link.close()


def _begin(work: Callable[[], None]) -> None:
    try:
        threading.Thread(target=work, name="incumbent-dial", daemon=True).start()
    except RuntimeError:
        # The interpreter is ending and starts no threads any more.
        work()


class _Attempt:
    """One connection in the making. Where nobody waits for it any more it becomes a spare one."""

    def __init__(
        self, dialer: Dialer, node: int, until: float, arrived: SimpleQueue[_Attempt]
    ) -> None:
        self.node = node
        self._dialer = dialer
        self._until = until
        self._arrived = arrived
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._spares: list[Link] | None = None
        self._over = False
        self.began = _now()

    def run(self) -> None:
        """Connect, and say so."""
        try:
            link = self._dialer.connect(self.node, self._until)
        except StoreError as error:
            self._dialer.nodes[self.node].failed(error)
        except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
            self._dialer.nodes[self.node].failed(StoreUnavailable(str(error)))
        else:
            self._finish(link)
        with self._lock:
            self._over = True
            arrived = self._arrived
        self._dialer.done(self)
        arrived.put(self)

    def _finish(self, link: Link) -> None:
        with self._lock:
            self._over = True
            if self._spares is None:
                self._link = link
            elif self._spares is self._dialer.spare[self.node]:
                self._spares.append(link)
            else:
                # The store was closed meanwhile.
                link.close()

    def taken(self) -> Link | None:
        """The connection, or None if it could not be made."""
        link, self._link = self._link, None
        return link

    def adopt(self, arrived: SimpleQueue[_Attempt]) -> bool:
        """Wait for it in place of who has given up; False if it is over, or somebody waits."""
        with self._lock:
            if self._over or self._spares is None:
                return False
            self._spares, self._arrived = None, arrived
            return True

    def abandon(self) -> Link | None:
        """Nobody waits any more; the connection if it is there all the same."""
        with self._lock:
            self._spares = self._dialer.spare[self.node]
            return self.taken()
