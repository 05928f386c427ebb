"""The part of a lease that guards use, and the guards of a file and of Redis or Valkey."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from incumbent.errors import ConfigError, LeaseLost, Misuse, StoreError


class Fenced(Protocol):
    """A lease of any kind (`Lease`, `Term`, `CurrentLease`, `JobRun`), or a `Token`."""

    @property
    def name(self) -> str:
        """The name that is leased."""
        ...

    @property
    def fencing_token(self) -> int:
        """A number that is larger than that of every earlier holder of this name."""
        ...

    def check(self) -> None:
        """Raise LeaseLost if the lease is not proved."""
        ...


class Token(NamedTuple):
    """A fencing token that came from elsewhere: from a request, or the environment of a command.

    Nothing here proves the lease, so `check` passes: only the guard's comparison protects.
    """

    name: str
    """The name that is leased, or the resource."""
    fencing_token: int

    def check(self) -> None:
        """Do nothing: the lease belongs to another process, which cannot be asked."""


def resource_of(lease: Fenced, resource: str | None) -> str:
    """The guarded resource's name. Raises ConfigError unless it is 1 to 255 printable bytes."""
    name: object = lease.name if resource is None else resource
    if isinstance(name, str) and name.isprintable() and 1 <= len(name.encode()) <= 255:
        return name
    raise ConfigError(f"a resource is 1 to 255 printable bytes, not {name!r}", name="resource")


def token_of(lease: Fenced) -> int:
    """The token. Raises ConfigError if it is no whole number: NaN would pass every comparison."""
    token: object = lease.fencing_token
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < 2**63:
        raise ConfigError(
            f"a fencing token is a whole number below 2**63, not {token!r:.40}",
            name="fencing_token",
        )
    return token


def refused(resource: str, token: int, seen: int | None = None) -> LeaseLost:
    """The error of a guard that has seen a larger token than `token`."""
    later = "a larger one" if seen is None else f"token {seen}"
    return LeaseLost(
        f"token {token} may not write to {resource!r} any more: {later} was here, so a later"
        " holder was granted the lease; nothing was written",
        name=resource,
        reason="taken",
    )


# -- a file that is replaced as a whole ------------------------------------------------------------


def replace_file(lease: Fenced, path: str | os.PathLike[str], data: bytes) -> None:
    """If `lease` may write, replace `path` with `data`: as a whole, on disk, and by a rename.

    If `path` is a symbolic link, its file is meant. The file `PATH.token` beside that has the
    largest token that wrote it. Keep that file, and write with this function alone: it locks
    `PATH.token` (flock) during its work, so a later holder waits for a write that passed before. A
    reader sees the old data or the new. All writers have to share a file system and its locks: a
    local one, or NFS 4. A crash between the steps can only make the guard refuse more.

    Raises LeaseLost, also if the lease is not proved any more, StoreError if `PATH.token` contains
    no token, ConfigError, and OSError; the file is then intact, and the old one unless its last
    sync failed.
    """
    lease.check()
    target, token = Path(os.path.realpath(path)), token_of(lease)
    with _locked(Path(f"{target}.token")) as guard:
        seen = _token_seen(guard, target)
        if token < seen:
            raise refused(str(target), token, seen)
        if token > seen:
            # Written in place with a fixed length, so that the file always contains a token.
            os.pwrite(guard, b"%020d" % token, 0)
            os.fsync(guard)
        _replace(target, data)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    import fcntl  # not on Windows, where the rest of the package can be imported

    guard = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # The lease is not checked again after this wait: the token decides, and a later holder that
        # wrote has raised it.
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield guard
    finally:
        os.close(guard)


def _token_seen(guard: int, target: Path) -> int:
    text = os.pread(guard, 64, 0)
    if not text:
        return 0
    if len(text) == 20 and text.isdigit():
        return int(text)
    raise StoreError(
        f"{target}.token has {text[:30]!r} instead of a token of 20 digits; nothing was written:"
        " write there the largest token that the file may have seen",
        permanent=True,
    )


def _replace(target: Path, data: bytes) -> None:
    # A fixed name is enough: the lock admits one writer. A leftover is overwritten.
    new = target.with_name(f".{target.name}.new")
    with new.open("wb") as file:
        with suppress(FileNotFoundError):
            os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
        file.write(data)
        file.flush()
        # Before the rename, or a crash could leave the new name with no data.
        os.fsync(file.fileno())
    new.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # The rename itself is on disk only with the folder.
        os.fsync(folder)
    finally:
        os.close(folder)


# -- commands for Redis or Valkey ------------------------------------------------------------------


Argument: TypeAlias = str | bytes | int | float
Command: TypeAlias = Sequence[Argument]

_KEY: Final = "incumbent-fencing:"
# A token has up to 19 digits and a number of Lua keeps 15 of them, so tokens are compared as text.
_SCRIPT: Final = """
local guard, token = KEYS[1], ARGV[1]
local seen = redis.call('GET', guard)
if seen and (not seen:match('^%d+$') or (#seen > #token or (#seen == #token and seen > token))) then
  return {0, seen}
end
redis.call('SET', guard, token)

local replies, at = {1}, 2
while ARGV[at] do
  local words = tonumber(ARGV[at])
  local reply = redis.call(unpack(ARGV, at + 1, at + words))
  replies[#replies + 1] = reply or false -- a nil would end the list
  at = at + 1 + words
end
return replies
"""


def write_redis(
    lease: Fenced, client: Any, *commands: Command, resource: str | None = None
) -> list[Any]:
    """Run `commands` on redis-py's `client` if `lease` may write; returns their replies.

    A command is a sequence of its words: `("SET", "total", 7)`. All run in one script, without
    other commands between them; if Redis refuses one, the script ends, and commands before it stay
    applied. In a Cluster `resource` and all keys need one hash tag. The largest token stays in the
    key `incumbent-fencing:RESOURCE` for ever: keep it from eviction. A failover that can lose the
    newest writes can lose that token too.

    Raises LeaseLost, also if the lease is not proved any more, StoreError if that key contains no
    token, Misuse for a pipeline, ConfigError, and redis-py's errors: after a TimeoutError or
    ConnectionError the commands may have run.
    """
    name, arguments = _prepared(lease, client, commands, resource)
    return _replies_of(lease, name, client.eval(_SCRIPT, 1, *arguments))


async def async_write_redis(
    lease: Fenced, client: Any, *commands: Command, resource: str | None = None
) -> list[Any]:
    """`write_redis` for clients of redis-py's `redis.asyncio`."""
    name, arguments = _prepared(lease, client, commands, resource)
    return _replies_of(lease, name, await client.eval(_SCRIPT, 1, *arguments))


def _prepared(
    lease: Fenced, client: Any, commands: tuple[Command, ...], resource: str | None
) -> tuple[str, list[Argument]]:
    if hasattr(client, "execute"):
        raise Misuse("write_redis() takes a client of redis-py, not a pipeline, which only queues")
    lease.check()
    if not commands or not all(commands) or any(isinstance(c, str | bytes) for c in commands):
        raise ConfigError(
            'each command is a sequence of its words: ("SET", "total", 7)', name="commands"
        )
    name = resource_of(lease, resource)
    words = [word for command in commands for word in (len(command), *command)]
    return name, [_KEY + name, str(token_of(lease)), *words]


def _replies_of(lease: Fenced, name: str, reply: list[Any]) -> list[Any]:
    passed, *replies = reply
    if passed == 1:
        return replies
    seen = replies[0] if isinstance(replies[0], bytes) else replies[0].encode()
    if seen.isdigit():
        raise refused(name, lease.fencing_token, int(seen))
    raise StoreError(
        f"the key {_KEY}{name} has {seen[:30]!r} instead of a token; nothing was written: write"
        " there the largest token that the resource may have seen",
        permanent=True,
    )
