"""The engine: what it can do, and its blocking and its asynchronous side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from incumbent.errors import ConfigError
from incumbent.model import Capabilities
from incumbent.stores.deciding import Deciding
from incumbent.stores.register_store import LOCAL, InlineRegisterStore, RegisterStore, prove
from incumbent.stores.registers import Quick
from incumbent_directory.registers import Moment, Registers, this_host

__all__ = ["DirectoryEngine", "open_directory"]


class DirectoryEngine:
    """See incumbent.stores.base.Engine."""

    # Only what the suite has shown: what is declared here is tested, and the rest is refused.
    capabilities = Capabilities(
        waits="poll",
        ttl_clock="boottime",
        queue=True,
        candidates=True,
        reservations=True,
        refuses_late=True,
        shared=True,
    )

    def __init__(self, folder: Path, moment: Callable[[], Moment] = this_host) -> None:
        self._folder = folder
        self.registers = Registers(folder, moment)
        # No restart_wait: no holder outlives the boot whose clock ends its lease.
        deciding = Deciding(self.url, restart_wait=0.0, quick=Quick(join=True))
        self._store = RegisterStore(self.registers, deciding, LOCAL)
        # Files answer at once, so a thread would cost more than it saves.
        self._async_store = InlineRegisterStore(self.registers, deciding)

    @property
    def url(self) -> str:
        """See Engine.url."""
        return f"directory://{self._folder}"

    def store(self) -> RegisterStore:
        """See Engine.store."""
        return self._store

    def async_store(self) -> InlineRegisterStore:
        """See Engine.async_store."""
        return self._async_store

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        """See Engine.diagnose."""
        prove(self.registers, self.url, until)
        return [("ok", f"{self._folder} can be written to and locked, and compares versions", "")]


def open_directory(url: str) -> DirectoryEngine:
    """What the entry point names: the engine of `directory:///path`. Touches no file yet."""
    parts = urlsplit(url)
    if parts.netloc or parts.query or not parts.path.startswith("/"):
        raise ConfigError("write directory:///path: an absolute path, no options", name="store")
    return DirectoryEngine(Path(unquote(parts.path)))
