"""Commands for Redis or Valkey that run only if no larger token was there, in one script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from incumbent.errors import ConfigError
from incumbent.fencing.token import Fenced, refused, resource_of

Argument: TypeAlias = str | bytes | int | float
Command: TypeAlias = Sequence[Argument]

_KEY: Final = "incumbent-fencing:"
# A token has up to 19 digits and a number of Lua keeps 15 of them, so tokens are compared as text.
_SCRIPT: Final = """
local guard, token = KEYS[1], ARGV[1]
local seen = redis.call('GET', guard)
if seen and (#seen > #token or (#seen == #token and seen > token)) then
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

    A command is a sequence of its words: `("SET", "total", 7)`. They run in one script: nothing
    comes between them; a command that Redis refuses ends it, and what ran before stays. In a
    Cluster `resource` and all keys need one hash tag. The largest token is kept in the key
    `incumbent-fencing:RESOURCE` for ever: keep it from eviction, and where a failover can lose the
    newest writes, it can lose that token too.

    Raises LeaseLost, also if the lease is not proved any more, ConfigError, and redis-py's errors:
    after a TimeoutError or ConnectionError the commands may have run.
    """
    name, arguments = _asked(lease, commands, resource)
    return _concluded(lease, name, client.eval(_SCRIPT, 1, *arguments))


async def async_write_redis(
    lease: Fenced, client: Any, *commands: Command, resource: str | None = None
) -> list[Any]:
    """See `write_redis`; for redis-py's `redis.asyncio`."""
    name, arguments = _asked(lease, commands, resource)
    return _concluded(lease, name, await client.eval(_SCRIPT, 1, *arguments))


def _asked(
    lease: Fenced, commands: tuple[Command, ...], resource: str | None
) -> tuple[str, list[Argument]]:
    lease.check()
    if not commands or not all(commands) or any(isinstance(c, str | bytes) for c in commands):
        raise ConfigError(
            'each command is a sequence of its words: ("SET", "total", 7)', name="commands"
        )
    name = resource_of(lease, resource)
    words = [word for command in commands for word in (len(command), *command)]
    return name, [_KEY + name, str(lease.fencing_token), *words]


def _concluded(lease: Fenced, name: str, reply: list[Any]) -> list[Any]:
    passed, *replies = reply
    if passed != 1:
        raise refused(name, lease.fencing_token, int(replies[0]))
    return replies
