"""Answers a supervised command's question "am I still?" on a unix socket.

Who connects gets one line of JSON at once, computed at that instant, and the end of the connection.
The answer fits into any socket's buffer, so nobody who does not read can make the supervisor wait.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from incumbent.errors import ConfigError
from incumbent.supervise.holding import belief_of, slot_of
from incumbent.sync import Lease

__all__ = ["LeaseSocket"]

_BACKLOG: Final = 128
_AT_ONCE: Final = 32
"""Answers given before the loop goes on: a flood of questions must not keep it from a KILL."""
_LONGEST_PATH: Final = 100
"""Bytes; unix(7) allows 107, other systems 103."""


class LeaseSocket:
    """A context manager; `path` is for INCUMBENT_LEASE_SOCKET, `fd` and `ready` for the loop.

    Whoever asks while it has no `lease` gets no answer. Raises ConfigError if there is no folder
    for the socket.
    """

    def __init__(self, lease: Lease | None = None) -> None:
        self.lease = lease
        self._folder = _private_folder()
        self.path = str(self._folder / "lease")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind(self.path)
            # CMD may have become another user. The folder can be passed through, not listed or
            # written, so nobody else can put a socket of theirs in our place.
            Path(self.path).chmod(0o666)
            self._folder.chmod(0o711)
            self._socket.listen(_BACKLOG)
        except BaseException:
            self.close()
            raise
        self.fd = self._socket.fileno()

    def ready(self) -> None:
        """Answer who has asked; never blocks and never raises."""
        for _ in range(_AT_ONCE):
            try:
                peer, _address = self._socket.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                peer.setblocking(False)
                # Only now: whoever connected earlier must not hear of a later proof.
                if self.lease is not None:
                    peer.send(_answer(self.lease))

    def close(self) -> None:
        """Remove it: from here on there is no answer, which counts as no."""
        self._socket.close()
        with suppress(OSError):
            Path(self.path).unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answer(lease: Lease) -> bytes:
    facts = {
        "name": lease.name,
        "holder": lease.holder,
        "term": lease.fencing_token,
        "slot": slot_of(lease),
        "remaining": lease.remaining,
        "lost": belief_of(lease).lost,
    }
    return json.dumps(facts).encode() + b"\n"


def _private_folder() -> Path:
    """A new one, where a command that became another user can reach it as well."""
    tried: list[str] = []
    # A container whose root is read-only has the last one at least.
    for base in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108
        if not base or len(os.fsencode(base)) > _LONGEST_PATH - len("/incumbent-xxxxxxxx/lease"):
            continue
        tried.append(base)
        with suppress(OSError):
            # Absolute, for CMD and the guard may be elsewhere.
            return Path(tempfile.mkdtemp(prefix="incumbent-", dir=base)).absolute()
    raise ConfigError(
        f"no folder for the lease's socket can be made in {', '.join(tried)}: set TMPDIR to a"
        " folder that can be written",
        name="tmpdir",
    )
