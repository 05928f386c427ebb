"""A master that sentinels name: ask the sentinels, judge their answers, follow the master.

Nothing is sent to a server unless a majority of the sentinels has said, within the last seconds,
that it is the master. So a process that is cut off together with an old master proves no lease any
more. As two majorities share a sentinel, no two servers are named at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, TypeVar

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.net.pool import decoding
from incumbent.stores.redis.incarnation import RedisOperations, RedisPlan
from incumbent.stores.redis.options import Address, Reach, RedisOptions, say_address, the_same
from incumbent.stores.redis.resp import RequestBatch, RespProgram, pack
from incumbent.stores.redis.runner import ignore_late_error
from incumbent.stores.redis.site import Demoted, RedisSite, answered_error
from incumbent.stores.redis.wire import Layer, RedisSide

T = TypeVar("T")

_now = clock.now

FRESH: Final = 1.0
"""Seconds for which an answer of the sentinels is trusted.

Shorter than any sensible `down-after-milliseconds`: a process that was cut off together with the
old master notices before the sentinels can have promoted another.
"""
PROVES: Final = 2.0
"""Seconds after the question for which requests may be sent to the master that was named."""
OLD_MASTER_FOR: Final = PROVES + 1.0
"""Seconds after a promotion for which requests may still be sent to the old master.

A majority names the new master before any client writes there. A process that still uses the old
one asked before, and sends for less than `PROVES` from then; the rest covers uneven clocks.
"""


class Opinion(NamedTuple):
    """The master according to one sentinel. The opinion with the highest `epoch` is the newest.

    Each promotion has a larger epoch than the one before.
    """

    epoch: int
    address: Address


def majority_of(sentinels: int) -> int:
    """The number of sentinels that must agree."""
    return sentinels // 2 + 1


def question(service: str, where: str, *, served: bool) -> RespProgram[Opinion]:
    """Ask one sentinel. Raises StoreUnavailable if it knows no such master."""
    request = pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    address, about = yield RequestBatch(request + pack("SENTINEL", "MASTER", service), 2)
    for answer in (about, address):
        if isinstance(answer, Exception) and "No such master" not in str(answer):
            raise answered_error(str(answer), where, served=served)
    if not isinstance(address, list) or not isinstance(about, list):
        raise StoreUnavailable(
            f"{where} knows no master of the name {service!r}", permanent=not served
        )
    return _opinion(address, about)


def _opinion(address: Sequence[Any], about: Sequence[Any]) -> Opinion:
    # The address is not read from `about`, which is older while a sentinel ends a failover.
    with decoding():
        fields = dict(zip(about[::2], about[1::2], strict=True))
        host, port = address
        return Opinion(int(fields[b"config-epoch"]), (host.decode(), int(port)))


def newest_of(opinions: Sequence[Opinion]) -> tuple[Opinion, int]:
    """The newest opinion, and how many sentinels have it."""
    newest = max(opinions)
    return newest, sum(each.epoch == newest.epoch for each in opinions)


def verdict(answers: Sequence[Opinion | StoreError], asked: int, where: str) -> Opinion:
    """The newest opinion. Raises StoreUnavailable unless a majority has it."""
    opinions = [each for each in answers if isinstance(each, Opinion)]
    if len(opinions) < majority_of(asked):
        raise _too_few(answers, len(opinions), asked, where)
    newest, agreeing = newest_of(opinions)
    if agreeing < majority_of(asked):
        raise StoreUnavailable(
            f"{where}: {agreeing} of {asked} sentinels say that the master is"
            f" {say_address(newest.address)} now, and {majority_of(asked)} are needed",
            retry_after=0.1,
        )
    return newest


def _too_few(
    answers: Sequence[Opinion | StoreError], known: int, asked: int, where: str
) -> StoreUnavailable:
    failures = [each for each in answers if isinstance(each, StoreError)]
    words = "; ".join(str(each) for each in failures[:3]) or "no answer in time"
    return StoreUnavailable(
        f"{where}: {known} of {asked} sentinels said where the master is, and"
        f" {majority_of(asked)} are needed: {words}",
        # If enough sentinels failed permanently, there can be no majority.
        permanent=sum(each.permanent for each in failures) > asked - majority_of(asked),
    )


@dataclass(slots=True)
class Followed:
    """A master and its sentinels, shared by both sides of an engine.

    `asked`: when the sentinels were asked that gave `opinion`; `checked`: the same, until
    `ask_again` resets it.
    """

    site: RedisSite
    sentinels: tuple[RedisSite, ...]
    service: str
    reach: Reach = the_same
    advice: str = "check the sentinels, their password and the name"
    opinion: Opinion | None = None
    asked: float = -inf
    checked: float = -inf

    @property
    def stale(self) -> bool:
        """Whether the sentinels must be asked again."""
        return not 0 <= _now() - self.checked <= FRESH

    async def ask(self, side: RedisSide, until: float) -> None:
        """Ask where the master is. Raises StoreUnavailable, at `until` at the latest."""
        # Before the question: an answer may be as old as that.
        asked_at, site = _now(), self.site

        def program(sentinel: RedisSite) -> RespProgram[Opinion]:
            return question(self.service, sentinel.where, served=site.served)

        def enough(opinions: Sequence[Opinion]) -> bool:
            return bool(opinions) and newest_of(opinions)[1] >= majority_of(len(self.sentinels))

        # After a later answer no request could be sent: see PROVES.
        until = min(until, asked_at + PROVES)
        answers = await side.survey(self.sentinels, program, enough, until)
        opinion = verdict(answers, len(self.sentinels), site.where)
        for sentinel, answer in zip(self.sentinels, answers, strict=True):
            # Once a sentinel has answered, later errors of it may be temporary.
            sentinel.served = sentinel.served or isinstance(answer, Opinion)
        # Another thread may have asked later and got a newer answer.
        if asked_at >= self.asked:
            target = replace(site.target.at(self.reach(opinion.address)), promotion=opinion.epoch)
            # Compared with the target, not with the last opinion: if both were set by different
            # threads, the next answer puts that right. The same object, for connections know it.
            before = site.target
            site.target = target = before if before == target else target
            self.opinion, self.asked, self.checked = opinion, asked_at, asked_at
            site.meant = target, asked_at + PROVES

    @property
    def summary(self) -> str:
        """The description for `doctor`."""
        master = say_address(self.opinion.address) if self.opinion else "unknown"
        return f"the sentinels say that the master is {master}"

    def masters(self) -> list[tuple[str, RedisSite]]:
        """See Discovery.masters."""
        return [("", self.site)]

    def ask_again(self) -> None:
        """After an error at the master: ask the sentinels again, because there may be another."""
        self.checked = -inf


def followed_of(site: RedisSite, options: RedisOptions) -> Followed:
    """The master and the sentinels that the options name."""
    site.old_master_for, site.named = OLD_MASTER_FOR, False
    sentinels = tuple(
        RedisSite(target, f"the sentinel {say_address(address)}")
        for target, address in zip(options.sentinels, options.hosts, strict=True)
    )
    return Followed(site, sentinels, options.service, options.reach)


class Follow(Layer):
    """Asks the sentinels before the master, and drops the connections to an old one."""

    def __init__(self, inner: RedisOperations, side: RedisSide, followed: Followed) -> None:
        super().__init__(inner)
        self._side = side
        self._followed = followed
        self._target: object = None

    async def run(self, plan: RedisPlan[T], until: float) -> T:
        return await self._at_the_master(until, partial(self.inner.run, plan, until))

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        waiting = self._at_the_master(until, partial(self.inner.wait_change, key, seen, until))
        await ignore_late_error(waiting, until)

    async def _at_the_master(self, until: float, operate: Callable[[], Awaitable[T]]) -> T:
        followed = self._followed
        await self._side.update(followed, until)
        target = followed.site.target
        if self._target is not target:
            # The connections lead to the master of before.
            self.inner.let_go()
            self._target = target
        try:
            return await operate()
        except StoreError as error:
            followed.ask_again()
            if isinstance(error, Demoted | OutcomeUnknown):
                # The other connections lead to the same server, which was demoted, or hangs.
                self.inner.let_go()
            raise
