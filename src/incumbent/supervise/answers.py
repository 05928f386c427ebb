"""What CMD learns about its lease: variables of its environment, and a socket that answers.

A process that connects gets one line of JSON at once, computed at that instant, and the end of the
connection. The answer fits into any socket's buffer, so that a peer that does not read cannot make
the supervisor wait.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from incumbent.errors import ConfigError
from incumbent.locks import Lease

WITHHELD: Final = "withheld:"
"""A store URL that every incumbent refuses with an explanation."""

_CREDENTIALS: Final = ("INCUMBENT_STORE_FILE", "INCUMBENT_STORE_PASSWORD_FILE")
_LEASE: Final = "INCUMBENT_LEASE_"
_OF_THE_SERVICE: Final = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("INCUMBENT_LISTEN", "INCUMBENT_TOKEN_FILE"),
)
"""CMD must not tell the service manager that its supervisor is well, nor want its port."""

_BACKLOG: Final = 128
_AT_ONCE: Final = 32
"""Answers given before the loop goes on: a flood of questions must not keep it from a KILL."""
_LONGEST_PATH: Final = 100
"""Bytes; unix(7) allows 107, other systems 103."""


class LeaseSocket:
    """A context manager; `path` is for INCUMBENT_LEASE_SOCKET, `fd` and `ready` for the loop.

    Without a `lease` it does not answer. Raises ConfigError if there is no folder for the socket.
    """

    def __init__(self, lease: Lease | None = None) -> None:
        self.lease = lease
        self._folder = _private_folder()
        self.path = str(self._folder / "lease")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind(self.path)
            # CMD may run as another user. The folder can be passed through, but neither listed nor
            # written, so that no other user can replace the socket.
            Path(self.path).chmod(0o666)
            self._folder.chmod(0o711)
            self._socket.listen(_BACKLOG)
        except BaseException:
            self.close()
            raise
        self.fd = self._socket.fileno()

    def ready(self) -> None:
        """Answer everybody who has asked; never blocks and never raises."""
        for _ in range(_AT_ONCE):
            try:
                peer, _address = self._socket.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                peer.setblocking(False)
                # Computed after the peer connected, from when it counts `remaining`.
                if self.lease is not None:
                    peer.send(_answer(self.lease))

    def close(self) -> None:
        """Remove it. From now on there is no answer, which means: not held."""
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
        "slot": lease.belief.slot,
        "remaining": lease.remaining,
        "lost": lease.belief.proof.lost,
    }
    return json.dumps(facts).encode() + b"\n"


def _private_folder() -> Path:
    """A new folder that a command which runs as another user can reach as well."""
    tried: list[str] = []
    # A container with a read-only root has at least /dev/shm.
    for base in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108
        if not base or len(os.fsencode(base)) > _LONGEST_PATH - len("/incumbent-xxxxxxxx/lease"):
            continue
        tried.append(base)
        with suppress(OSError):
            # Absolute: CMD and the guard may have other working directories.
            return Path(tempfile.mkdtemp(prefix="incumbent-", dir=base)).absolute()
    raise ConfigError(
        f"no folder for the lease's socket can be made in {', '.join(tried)}: set TMPDIR to a"
        " folder that can be written",
        name="tmpdir",
    )


# -- the environment ------------------------------------------------------------------------------


def without_service(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what belongs to this process as a service."""
    return {name: value for name, value in environ.items() if name not in _OF_THE_SERVICE}


def child_environment(
    environ: Mapping[str, str], share_store: str | None, lease: Mapping[str, str | None]
) -> dict[str, str]:
    """`environ` with the variables of the lease, and without those of our own parent's.

    `share_store`: the URL of the store, if CMD may use it.
    """
    kept = {
        name: value
        for name, value in without_service(environ).items()
        if not name.startswith(_LEASE) and name not in _CREDENTIALS
    }
    kept["INCUMBENT_STORE"] = WITHHELD if share_store is None else share_store
    return kept | {_LEASE + name: value for name, value in lease.items() if value is not None}
