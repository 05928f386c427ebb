"""The engine of a store that needs more than the connections to one server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from incumbent.model import Capabilities
from incumbent.stores.blocking import BlockingStore, Operations
from incumbent.stores.redis.engine import Finding, RedisEngine
from incumbent.stores.redis.layers.base import Side
from incumbent.stores.redis.layers.side import BlockingSide

if TYPE_CHECKING:
    from incumbent.stores.loops import Loops
    from incumbent.stores.redis.layers.aioside import AsyncFace

__all__ = ["Build", "Examine", "LayeredEngine", "Mend"]

Build: TypeAlias = Callable[[Side], Operations]
"""Makes the layers of one side."""
Examine: TypeAlias = Callable[[Side, float, float], list[Finding]]
"""What a doctor finds, for a ttl, until an instant."""
Mend: TypeAlias = Callable[[Side, float], list[Finding]]
"""What came of loading our functions, until an instant."""


class LayeredEngine:
    """See stores.base.Engine. Connects to nothing before its first operation."""

    capabilities: Capabilities = RedisEngine.capabilities

    def __init__(self, where: str, build: Build, examine: Examine, mend: Mend) -> None:
        self.url = where
        self._build = build
        self._examine, self._mend = examine, mend
        self._side = BlockingSide()
        self._store = BlockingStore(build(self._side))
        self._loops: dict[str, Loops[AsyncFace]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def store(self) -> BlockingStore[Operations]:
        """See Engine.store."""
        return self._store

    def async_store(self) -> AsyncFace:
        """See Engine.async_store. Raises RuntimeError where no event loop runs."""
        loops = self._loops.get("all")
        return (loops or self._make_loops()).store()

    def _make_loops(self) -> Loops[AsyncFace]:
        # Imported only now: the blocking side has no use for asyncio.
        from incumbent.stores.loops import Loops
        from incumbent.stores.redis.layers.aioside import make_face

        # One atomic step instead of a lock, which a fork could copy while somebody holds it.
        return self._loops.setdefault("all", Loops(partial(make_face, self._build)))

    def fix(self, until: float) -> list[Finding]:
        """Have every master load the functions of this release; findings as of `diagnose`."""
        return self._mend(self._side, until)

    def diagnose(self, ttl: float, until: float) -> list[Finding]:
        """See Engine.diagnose. Looks also at servers that would be refused."""
        return self._examine(self._side, ttl, until)
