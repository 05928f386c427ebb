"""From a URL or a client to an engine, which makes its blocking and its asynchronous side."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Capabilities
from incumbent.protocol.port import run
from incumbent.stores.redis.dial import dial
from incumbent.stores.redis.dialect import Dialect
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.exchange import carry_out
from incumbent.stores.redis.loaded import load_functions, look_at_functions
from incumbent.stores.redis.marked import look_at_marker, look_at_resync
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.resp import Program
from incumbent.stores.redis.server import diagnosis
from incumbent.stores.redis.sync import RedisStore

if TYPE_CHECKING:
    from incumbent.stores.loops import Loops
    from incumbent.stores.redis.aio import AsyncRedisStore

__all__ = ["Finding", "RedisEngine", "examine", "mend"]

Finding: TypeAlias = "tuple[str, str, str]"


class RedisEngine:
    """See stores.base.Engine. Connects to nothing before its first operation."""

    capabilities = Capabilities(
        waits="pubsub",
        ttl_clock="wall",
        queue=True,
        candidates=True,
        reservations=True,
        refuses_late=True,
    )

    def __init__(self, site: Site, template: str | None = None) -> None:
        self.url = site.where
        self._site = site
        self._dialect = Dialect(Naming(template), site.where)
        self._store = RedisStore(site, self._dialect)
        self._loops: dict[str, Loops[AsyncRedisStore]] = {}

    def __repr__(self) -> str:
        return f"RedisEngine({self.url!r})"

    def store(self) -> RedisStore:
        """See Engine.store."""
        return self._store

    def async_store(self) -> AsyncRedisStore:
        """See Engine.async_store. Raises RuntimeError where no event loop runs."""
        loops = self._loops.get("all")
        return (loops or self._make_loops()).store()

    def _make_loops(self) -> Loops[AsyncRedisStore]:
        # Imported only now: the blocking side has no use for asyncio.
        from incumbent.stores.loops import Loops
        from incumbent.stores.redis.aio import AsyncRedisStore

        # One atomic step instead of a lock, which a fork could copy while somebody holds it.
        return self._loops.setdefault(
            "all", Loops(partial(AsyncRedisStore, self._site, self._dialect))
        )

    def fix(self, until: float) -> list[Finding]:
        """Have the server load the functions of this release; findings as of `diagnose`."""
        return mend(self._site, until)

    def diagnose(self, ttl: float, until: float) -> list[Finding]:
        """See Engine.diagnose. Looks also at a server that would be refused."""
        return examine(self._site, ttl, until)


def examine(site: Site, ttl: float, until: float) -> list[Finding]:
    """What there is to say of one server. Looks also at one that would be refused."""

    def program() -> Program[list[Finding]]:
        found = yield from diagnosis(ttl, site.restart_wait, clock.now, clock.wall, marked=True)
        found += yield from look_at_resync()
        found += yield from look_at_marker(site, ttl)
        functions = yield from look_at_functions(needed=_calls_functions(site))
        return [*found, *functions]

    return _visit(site, program(), until)


def mend(site: Site, until: float) -> list[Finding]:
    """Have one server load the functions of this release."""
    return _visit(site, load_functions(needed=_calls_functions(site)), until)


def _calls_functions(site: Site) -> bool:
    return bool(site.marker.function)


def _visit(site: Site, program: Program[list[Finding]], until: float) -> list[Finding]:
    try:
        wire = dial(site, until)
    except StoreError as error:
        return [("error", str(error), "check the address, the password and the network")]
    try:
        return run(carry_out(wire, program, until))
    except Exception as error:  # noqa: BLE001 - whatever it is, a diagnosis reports it
        return [("error", f"{site.where} answered nothing usable: {error}", "look at its log")]
    finally:
        wire.close()
