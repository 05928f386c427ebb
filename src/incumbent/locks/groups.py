"""Groups: the present members and their metadata, for blocking code and for asyncio."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, Self, TypedDict, Unpack

from incumbent import clock
from incumbent.durations import Duration
from incumbent.election import encode_metadata, read_metadata
from incumbent.errors import ConfigError, Misuse, NotAcquired, StoreError
from incumbent.locks.callers import Exclusion
from incumbent.locks.candidacy import Metadata
from incumbent.locks.leases import trimmed_traceback
from incumbent.locks.options import explain_arguments, lease_request, renamed_after_fork, require
from incumbent.locks.other_words import refuse_copy, refuse_unknown, refuse_wrong_with
from incumbent.locks.running import (
    AsyncNews,
    EndablePort,
    News,
    leased_body,
    task_beside,
    thread_beside,
)
from incumbent.model import Capabilities
from incumbent.policy import TTL_MIN, Policy
from incumbent.protocol.claim import LeaseRequest
from incumbent.protocol.observe import Watched, WritingPort
from incumbent.protocol.roster import MEMBER, Roster, attend
from incumbent.runtime.link import link_for
from incumbent.stores import names
from incumbent.stores.plan import run_blocking

if TYPE_CHECKING:
    from incumbent.runtime.link import StoreLike

_log = logging.getLogger("incumbent")

NAME_MOST: Final = 100
"""Characters of a group's name, with which the names of its members and shards begin."""


class GroupSettings(TypedDict, total=False):
    """Keyword settings of groups and shards, with the same meaning as for `Lock`.

    `ttl` (15 s): the time to detect a crash. `grace`: the time for the clean-up of a shard's body.
    `policy`: an `incumbent.Policy` in place of both. `holder`: the member's name, which no other
    member may have; by default this host and process.
    """

    ttl: Duration
    grace: Duration | None
    policy: Policy | None
    holder: str | None


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group, as the store reported it at some instant; it may be gone by now.

    `term` is the fencing token of the membership, which grows each time the member joins again.
    `metadata` is empty if the member gave no mapping of texts; `raw` has the bytes themselves.
    """

    holder: str
    """The member's name: `holder=`, or the host and process."""
    term: int
    """The fencing token: larger than that of every earlier membership of this name."""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What the member proclaimed, if it is a mapping of texts; else empty."""
    raw: bytes = field(default=b"", repr=False, hash=False)
    """The metadata as bytes."""


class GroupHandle:
    """The part that blocking and asyncio groups share: everything that does not wait."""

    __slots__ = ("__weakref__", "_joined", "_link", "_request_as_made")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_wrong_with(cls)

    @explain_arguments
    def __init__(
        self,
        name: str,
        *,
        store: StoreLike | None = None,
        namespace: str = "default",
        **settings: Unpack[GroupSettings],
    ) -> None:
        refuse_unknown(settings, GroupSettings)
        names.check_name(name)
        if len(name) > NAME_MOST:
            raise ConfigError(
                f"{name[:40]!r}...: {len(name)} characters, at most {NAME_MOST} for a group,"
                " whose members and shards get longer names",
                name="name",
            )
        self._link = link_for(store)
        can = self._link.engine.capabilities
        require(can, type(self).__name__.removeprefix("Async"), "fields")
        self._request_as_made = lease_request(namespace, name, can, **settings)
        self._joined = Exclusion()

    @property
    def _wanted(self) -> LeaseRequest:
        return renamed_after_fork(self._request_as_made)

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._wanted.key.name

    @property
    def holder(self) -> str:
        """The name of this process as a member, whether it has joined or not."""
        return self._wanted.holder

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._link.engine.url}>"

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    @contextmanager
    def _one_membership(self) -> Iterator[None]:
        self._link.client_end.refuse(f"{self.name!r}: ")
        with self._joined.enter() as alone:
            if not alone or self._is_in_already():
                raise Misuse(
                    f"{self.holder!r} is a member of {self.name!r} already, in this process: join"
                    " once, or give each member a holder= of its own"
                )
            yield

    def _is_in_already(self) -> bool:
        now, key = clock.now(), self._membership(b"").key
        # Another object for the same group may have joined in this process, under the same name.
        claims = (ref() for ref in self._link.keeper.refs())
        return any(
            claim and claim.wanted.key == key and claim.machine.valid(now) for claim in claims
        )

    def _membership(self, meta: bytes) -> LeaseRequest:
        """The settings of this member's lease."""
        own = self.holder
        if names.MARK in own or not names.is_name(own):
            own = names.escaped(own)
        name = names.within_limit(f"{self.name}/{MEMBER}{own}")
        can, namespace = self._link.engine.capabilities, self._wanted.key.namespace
        policy = _shorter(self._wanted.policy, can)
        wanted = lease_request(namespace, name, can, policy=policy, holder=self.holder)
        return wanted.asking(meta=meta)

    def _roster(self, own: LeaseRequest | None = None, note: bytes = b"") -> Roster:
        return Roster(self._wanted.key, self._wanted.policy, self._link.keeper, own, note)

    def _roster_to_read(self) -> Roster:
        self._link.client_end.refuse(f"{self.name!r}: ")
        return self._roster()

    def _observation(self) -> tuple[Watched, Callable[[], tuple[Member, ...]]]:
        """The roster that `observe` watches, and a function that returns its members."""
        roster = self._roster()
        return roster, partial(_members, roster)


def _shorter(policy: Policy, can: Capabilities) -> Policy:
    """The policy of a membership: its lease ends a renewal interval before those of the shards."""
    # So other members learn of a crash before they can take the shards.
    ttl = max(can.ttl_min, TTL_MIN, policy.ttl - policy.renew_every)
    try:
        return Policy(ttl, rho=policy.rho)
    except ConfigError:
        return policy


def _members(roster: Roster) -> tuple[Member, ...]:
    return tuple(
        Member(seen.holder, seen.token, read_metadata(seen.meta), seen.meta)
        for seen in roster.holdings()
    )


async def first_try(port: WritingPort, roster: Roster) -> None:
    """Try to join, once. If the store or a predecessor prevents it for now, `attend` tries again.

    Raises an error that a later try would meet too.
    """
    try:
        await roster.join(port, 0)
    except (NotAcquired, StoreError) as error:
        if isinstance(error, StoreError) and error.permanent:
            raise
        _log.info("%s: not a member yet: %s", roster.key.name, error)


class Group(GroupHandle):
    """A group: the processes that joined `name` and still renew their leases.

    `store` and `namespace` are those of `Lock`, and of its settings `ttl`, `grace`, `policy` and
    `holder`. Raises ConfigError.

    >>> group = Group("workers", store="memory:", holder="a")
    >>> with group.join({"at": "10.0.0.7:80"}):
    ...     group.members()[0].metadata["at"]
    '10.0.0.7:80'
    """

    __slots__ = ()

    @leased_body
    def join(self, metadata: Metadata = None) -> Iterator[Self]:
        """Be a member while the body runs; a thread joins again when an outage ended that.

        If the store is unavailable the body begins all the same. A dead process is a member until
        its lease ends, four fifths of the ttl after its last renewal. An error that ends the
        membership is logged at once and raised at the end of the body: Misuse if another live
        member has this name. Raises Misuse for a second membership in this process, ConfigError.
        """
        encoded = encode_metadata(metadata)
        with self._one_membership():
            link, roster = self._link, self._roster(self._membership(encoded))
            port = EndablePort(link, self._wanted.policy.renew_every)

            def end() -> None:
                port.end()
                # This also wakes the thread, if the store notifies of changes.
                run_blocking(roster.strike_off(link.port))

            try:
                with trimmed_traceback:
                    run_blocking(first_try(link.port, roster))

                def work() -> None:
                    # Made here: if the thread never begins, nobody awaits a coroutine.
                    run_blocking(attend(port, roster))

                with thread_beside(self.name, work, end, "membership"):
                    yield self
            finally:
                # Last, after the thread has ended: it might join again.
                run_blocking(roster.leave(link.port))

    def members(self) -> tuple[Member, ...]:
        """The members, by name; one request, and one more for each member. Raises StoreError."""
        roster = self._roster_to_read()
        with trimmed_traceback:
            run_blocking(roster.recheck(self._link.port))
        return _members(roster)

    def observe(self, timeout: Duration | None = None) -> Iterator[tuple[Member, ...]]:
        """The present members, then the members after each change.

        Continues through outages and raises only a permanent StoreError. With `timeout` it ends
        after that many seconds without news. A change shows when the store notifies of it, or
        within a renewal interval; a crash shows when the dead member's lease has ended.
        """
        return News(self._link, *self._observation(), timeout)


class AsyncGroup(GroupHandle):
    """A group, for asyncio; see `incumbent.Group`.

    >>> async def main():
    ...     group = AsyncGroup("workers", store="memory:", holder="b")
    ...     async with group.join({"at": "10.0.0.7:80"}):
    ...         await group.members()
    """

    __slots__ = ()

    @asynccontextmanager
    async def join(self, metadata: Metadata = None) -> AsyncIterator[Self]:
        """Be a member while the body runs; see Group.join."""
        encoded = encode_metadata(metadata)
        with self._one_membership():
            port = self._link.async_port()
            roster = self._roster(self._membership(encoded))
            try:
                with trimmed_traceback:
                    await first_try(port, roster)
                async with task_beside(self.name, attend(port, roster), "membership"):
                    yield self
            finally:
                await roster.leave(port)

    async def members(self) -> tuple[Member, ...]:
        """The members, by name; see Group.members."""
        roster = self._roster_to_read()
        with trimmed_traceback:
            await roster.recheck(self._link.async_port())
        return _members(roster)

    def observe(self, timeout: Duration | None = None) -> AsyncIterator[tuple[Member, ...]]:
        """The present members, then the members after each change; see Group.observe."""
        return AsyncNews(self._link, *self._observation(), timeout)
