"""Requests to the API server by plain HTTP, over few connections; both sides share it."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import quote
from weakref import WeakSet, WeakValueDictionary

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import (
    Ask,
    GiveOutcome,
    Key,
    Refused,
    Renewal,
    RenewOutcome,
    TakeOutcome,
    Unproved,
)
from incumbent.net.bounded import BoundedRunner
from incumbent.net.dial import is_unknown
from incumbent.net.http import Garbled, Reading, Stream, encode, exchange, parse
from incumbent.net.limiter import Limiter
from incumbent.net.pool import Broken, Mismatch
from incumbent.net.readers import Wakeup
from incumbent.rules.record import holders
from incumbent.stores.base import Answers, Give, Take
from incumbent.stores.deciding import Deciding
from incumbent.stores.kubernetes.errors import KubernetesAnswer, failure
from incumbent.stores.kubernetes.exchange import KubernetesExchange
from incumbent.stores.kubernetes.known import FRESH, Known
from incumbent.stores.kubernetes.objects import LABEL, label_of
from incumbent.stores.kubernetes.site import KubernetesSite
from incumbent.stores.names import flat
from incumbent.stores.plan import Plan, PlannedTogether, drive
from incumbent.stores.polling import in_line
from incumbent.stores.registers import Seen, Wanted

E = TypeVar("E", bound=Renewal | Take | Give)
T = TypeVar("T")
W = TypeVar("W", bound=Stream)

_METHODS: Final = {"create": "POST", "update": "PUT"}
_HEADERS: Final = (
    "Content-Type: application/json\r\nAccept: application/json\r\nUser-Agent: incumbent\r\n"
)
_PAGE: Final = 500
_LANES: Final = 8
"""Names of a batch that are asked for at once: two of the connections are left to others."""


class KubernetesDeciding(Deciding):
    """Decides by what this process knows, where only a swap can show that it is so."""

    began = "was made anew, or restored,"

    def __init__(self, site: KubernetesSite, known: Known) -> None:
        super().__init__(site.where, site.restart_wait)
        self._known = known

    def recalled(self, wanted: Wanted) -> Seen | None:
        sight = self._known.sights.get(wanted.key)
        if sight is None:
            return None
        try:
            seen = self._known.seen(wanted.key, sight, self._known.marker, recalled=True)
        except StoreError:
            return None
        fresh = self._known.now() - sight.seen <= FRESH
        return seen if fresh or (sight.own and holders(seen.record, seen.now)) else None


class KubernetesClient(PlannedTogether[None], BoundedRunner[W, None]):
    """The operations. `known`: what this process knows; `served`: the server has answered it."""

    served = False
    renews_one_by_one = True
    """Each renewal is a request, so the keeper spreads them over time."""
    dialect: KubernetesDeciding

    def __init__(
        self, site: KubernetesSite, dialect: KubernetesDeciding, known: Known,
        wakeup: Callable[[], Wakeup], sleep: Any,
    ) -> None:  # fmt: skip
        super().__init__(site.where, wakeup, sleep)
        self.site, self.dialect, self.known = site, dialect, known
        self.namespace = site.namespace
        self.leases = f"/apis/coordination.k8s.io/v1/namespaces/{site.namespace}/leases"
        self._gates: WeakValueDictionary[Key, Limiter] = WeakValueDictionary()
        self._spent: WeakSet[W] = WeakSet()
        """Connections that end after the present plan."""

    @abstractmethod
    async def connect(self, until: float) -> W:
        """A connection. Raises OSError."""

    @abstractmethod
    async def off_loop(self, work: Callable[[], None]) -> None:
        """Do what may take seconds, where it keeps no event loop from going on."""

    @abstractmethod
    async def at_once(self, lane: Callable[[], Coroutine[Any, Any, None]], lanes: int) -> None:
        """Run a lane so many times, all at once, to its end."""

    # -- connections --------------------------------------------------------------------------

    async def dial(self, until: float) -> W:
        """A connection. Raises StoreUnavailable."""
        # Our certificate may come from a plugin.
        await self._log_in(until)
        try:
            return await self.connect(until)
        except (OSError, Broken) as error:
            raise_if_from_signal(error)
            raise self.unreachable(error) from error

    def unreachable(self, error: Exception) -> StoreUnavailable:
        """The exception for a connection that cannot be made."""
        final = is_unknown(error) or "certificate verify failed" in str(error)
        said = f"{self.where} cannot be reached: {error}"
        return StoreUnavailable(said, permanent=final and not self.served)

    def spend(self, wire: W) -> None:
        """Do not use a connection again after the present plan."""
        self._spent.add(wire)

    def detach(self) -> None:
        self.site.login.detach()
        super().detach()

    def put_back(self, wire: W, idle: list[W]) -> None:
        if wire in self._spent:
            wire.close()
        else:
            super().put_back(wire, idle)

    def keep_or_close(self, wire: W, idle: list[W], error: BaseException) -> None:
        if isinstance(error, StoreError):
            self.put_back(wire, idle)
        else:
            wire.close()

    # -- plans --------------------------------------------------------------------------------

    async def run(self, plan: Plan[None, T], until: float) -> T:
        """See Planned.run. Of this process, one at a time changes a name; renewals do not wait."""
        if plan.kind not in ("take", "give", "put") or len(plan.keys) != 1:
            return await super().run(plan, until)
        gate = self._gates.get(plan.keys[0])
        if gate is None:
            gate = Limiter(self.where, 1, self._wakeup, lambda: True, None)
            gate = self._gates.setdefault(plan.keys[0], gate)
        # One at a time: two of this process would only refuse each other's version (409).
        place = gate.enter_now() or await gate.enter(until)
        try:
            return await super().run(plan, until)
        finally:
            place.leave(answered=True)

    async def carry_out(self, wire: W, plan: Plan[None, T], until: float) -> T:
        answers = KubernetesExchange(self, wire, until)
        try:
            await answers.prepare(plan)
            return await drive(plan.start(None, until), answers.answer)
        except Broken as error:
            raise Broken(str(error), sent=error.sent or answers.wrote, late=error.late) from error
        except Garbled as error:
            raise Mismatch(str(error)) from error
        except StoreUnavailable as error:
            if answers.wrote:
                raise OutcomeUnknown(str(error)) from error
            raise

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        outcome = await super().take(key, claim, ask, until)
        if isinstance(outcome, Refused) and self.known.is_unproved(key, outcome):
            outcome = replace(outcome, holder_may_be_dead=True)
        return in_line(outcome, claim, ask)

    # -- batches ------------------------------------------------------------------------------

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        found: list[RenewOutcome | StoreError]
        found = await self._in_lanes(super().renew, renewals, until)
        return [Unproved(str(it)) if isinstance(it, StoreError) else it for it in found]

    async def take_all(self, takes: Sequence[Take], until: float) -> Answers[TakeOutcome]:
        return await self._in_lanes(super().take_all, takes, until)

    async def give_all(self, gives: Sequence[Give], until: float) -> Answers[GiveOutcome]:
        return await self._in_lanes(super().give_all, gives, until)

    async def _in_lanes(
        self, ask: Callable[[Sequence[E], float], Awaitable[list[T]]],
        batch: Sequence[E], until: float,
    ) -> list[T | StoreError]:  # fmt: skip
        """What `ask` says of each of a batch, asked name by name. Raises what it raised of all.

        No request serves two names. So some are asked for at once, each on a connection of its own,
        and one whose answer is slow, or lost, delays no other.
        """
        places = dict[Key, list[int]]()
        for place, it in enumerate(batch):
            places.setdefault(it.key, []).append(place)
        left = [*reversed(places.items())]
        found, errors = dict[int, T | StoreError](), list[StoreError]()

        async def lane() -> None:
            while left:
                try:
                    key, of = left.pop()
                except IndexError as error:
                    raise_if_from_signal(error)
                    return  # another lane was quicker
                answers: Sequence[T | StoreError]
                try:
                    if clock.now() >= until:
                        raise StoreUnavailable(f"{self.where}: no time was left for {flat(key)}")
                    answers = await ask([batch[place] for place in of], until)
                except StoreError as error:
                    errors.append(error)
                    answers = [error] * len(of)
                found.update(zip(of, answers, strict=True))

        try:
            await self.at_once(lane, min(_LANES, len(places)))
        finally:
            # Whoever is interrupted has the other lanes begin nothing more.
            left.clear()
        if errors and len(errors) == len(places):
            # Perhaps applied, if that is so of any of them.
            raise max(errors, key=lambda it: isinstance(it, OutcomeUnknown))
        return [found[place] for place in range(len(batch))]

    # -- requests -----------------------------------------------------------------------------

    async def ask(
        self, wire: W, verb: str, name: str, until: float, body: dict[str, Any] | None = None
    ) -> KubernetesAnswer:
        """The answer about one Lease: done, or that there is none (404), or another one (409).

        Raises StoreError, Broken, Garbled.
        """
        path = self.leases if verb == "create" else f"{self.leases}/{name}"
        answer = await self.call(wire, verb, path, until, body)
        there = not answer.lacks_namespace and answer.body.get("kind") == "Status"
        if answer.status < 300 or (there and answer.status in (404, 409)):
            return answer
        raise self.failed(answer)

    def failed(self, answer: KubernetesAnswer) -> StoreError:
        """The exception for an answer that brings nothing."""
        return failure(answer, self.where, self.namespace, served=self.served)

    async def listed(self, wire: W, namespace: str, until: float) -> AsyncIterator[dict[str, Any]]:
        """The Leases of one of our namespaces."""
        async for page in self.pages(wire, namespace, until):
            for lease in page["items"]:
                yield lease

    async def pages(self, wire: W, namespace: str, until: float) -> AsyncIterator[dict[str, Any]]:
        """The same, page by page. Raises StoreError, Broken, Garbled."""
        more = ""
        while True:
            query = f"?limit={_PAGE}&{labelled(namespace)}&continue={quote(more)}"
            answer = await self.call(wire, "list", self.leases + query, until)
            if answer.status != 200:
                raise self.failed(answer)
            yield answer.body
            more = answer.body["metadata"].get("continue") or ""
            if not more:
                return

    async def call(
        self, wire: W, verb: str, path: str, until: float, body: dict[str, Any] | None = None
    ) -> KubernetesAnswer:
        """The answer to one request, whatever it is. Raises StoreUnavailable, Broken, Garbled."""
        reading, tries = Reading(), 2
        while tries:
            tries -= 1
            request, header = await self.encoded(verb, path, until, body)
            reading = await exchange(wire, request, until)
            # At once: the Date counts from when it came.
            self.known.heard(reading.header(b"date"))
            if reading.last:
                self.spend(wire)
            if reading.status != 401 or reading.last or not self.site.login.refused(header):
                break
        if reading.status == 401:
            # The next one shows the certificate that we have then.
            self.spend(wire)
        return self.answer_of(verb, reading)

    async def _log_in(self, until: float) -> None:
        login = self.site.login
        if login.is_over:
            await self.off_loop(lambda: login.fetch(until))

    async def encoded(
        self, verb: str, path: str, until: float, body: dict[str, Any] | None = None
    ) -> tuple[bytes, str]:
        """A request, and the login in it. Raises StoreUnavailable."""
        site = self.site
        # Before each request, not for each connection: a token ends while connections live.
        await self._log_in(until)
        header = site.login.header
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        method = _METHODS.get(verb, "GET")
        return encode(method, site.base + path, site.endpoint, header, data, _HEADERS), header

    def answer_of(self, verb: str, reading: Reading) -> KubernetesAnswer:
        """The answer that was read. Raises Garbled."""
        after = reading.header(b"retry-after")
        text = reading.body
        body = parse(text) if reading.status < 300 else _status_of(text)
        self.served = self.served or reading.status < 300
        seconds = float(after) if after.isdigit() else None
        return KubernetesAnswer(verb, reading.status, body, seconds)


def labelled(namespace: str) -> str:
    """The part of a query that selects one of our namespaces."""
    return f"labelSelector={quote(LABEL, safe='')}%3D{label_of(namespace)}"


def _status_of(text: bytes) -> dict[str, Any]:
    """A Status; proxies, and API servers under load, answer in plain text."""
    try:
        return parse(text)
    except Garbled:
        return {"message": text[:200].decode(errors="replace").strip()}
