"""The one Telnet session: reads what the host says, sends a command each second.

    incumbent lead switch-7 -- python examples/telnet_leader/client.py

Alone it holds no lease and asks nobody: it is what runs *inside* a term. TELNET_HOST and
TELNET_PORT name the host, TELNET_COMMAND what to send (the term is added), TELNET_EVERY how often,
in seconds. Exit 0 on TERM, 1 if the host cannot be reached or hung up, 64 for bad settings.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import telnetlib3

__all__ = ["Host", "HungUp", "hold_session", "host_from"]

CONNECT_WITHIN = 5.0

Reader: TypeAlias = telnetlib3.TelnetReaderUnicode
Writer: TypeAlias = telnetlib3.TelnetWriterUnicode


class HungUp(OSError):
    """The host ended the session."""


@dataclass(frozen=True)
class Host:
    """Where the session goes, and what is sent there every `every` seconds."""

    name: str
    port: int
    command: str
    every: float


def host_from(environ: Mapping[str, str]) -> Host:
    """Raises KeyError or ValueError for settings that are missing or make no sense."""
    every = float(environ.get("TELNET_EVERY", "1"))
    if not 0.01 <= every <= 3600:
        raise ValueError(f"TELNET_EVERY={every}: between 0.01 and 3600 seconds")
    port = int(environ.get("TELNET_PORT", "23"))
    command = environ.get("TELNET_COMMAND", "heartbeat")
    return Host(environ["TELNET_HOST"], port, command, every)


async def hold_session(host: Host, term: int, check: Callable[[], object]) -> None:
    """Hold the session until it is cancelled, the host hangs up, or `check` raises.

    `check` is asked before each line that is sent: a process that was frozen must not act on what
    it believed before. However this ends, the session is closed when it returns.
    """
    async with _session(host, check) as (reader, writer):
        say(f"session open, term {term}")
        reading = asyncio.ensure_future(_read(reader))
        try:
            while not reading.done():
                check()
                writer.write(f"{host.command} {term}\r\n")
                await asyncio.wait([reading], timeout=host.every)
            reading.result()
        finally:
            reading.cancel()


@asynccontextmanager
async def _session(host: Host, check: Callable[[], object]) -> AsyncIterator[tuple[Reader, Writer]]:
    check()
    made: list[_Client] = []

    def client(**settings: Any) -> _Client:
        made.append(_Client(**settings))
        return made[-1]

    try:
        # No waiting for options: a host that negotiates none would cost a second of each term.
        streams = await telnetlib3.open_connection(
            host.name,
            host.port,
            client_factory=client,
            connect_maxwait=0.1,
            connect_timeout=CONNECT_WITHIN,
        )
        # With an encoding, which is the default, the streams speak text.
        yield cast("tuple[Reader, Writer]", streams)
    finally:
        for each in made:
            each.close_at_once()
        say("session closed")


class _Client(telnetlib3.TelnetClient):
    """Knows its connection from its first instant, so that no cancellation can leave it open."""

    _opened: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened = transport
        super().connection_made(transport)

    def close_at_once(self) -> None:
        # Not close(), which would first send what is still queued, for as long as that takes.
        if isinstance(self._opened, asyncio.WriteTransport):
            self._opened.abort()


async def _read(reader: Reader) -> None:
    while line := await reader.readline():
        say(f"host: {line.rstrip()}")
    raise HungUp("the host hung up")


def say(text: str) -> None:
    print(text, flush=True)


async def _until_told() -> None:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - always true in a coroutine that asyncio.run started
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    term = int(os.environ.get("INCUMBENT_LEASE_TERM", "0"))
    # The supervisor's guard ends this process inside the lease: there is nothing to check here.
    with suppress(asyncio.CancelledError):
        await hold_session(host_from(os.environ), term, lambda: None)


def main() -> int:
    try:
        asyncio.run(_until_told())
    except (KeyError, ValueError) as error:
        print(f"client: bad settings: {error}", file=sys.stderr)
        return 64
    except OSError as error:
        print(f"client: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
