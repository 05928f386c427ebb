"""A private network of namespaces on a bridge, whose members can be parted; needs root.

This machine is the host at `.1` and reaches every member, as a client would that
can still see the minority.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import subprocess
from contextlib import suppress
from types import TracebackType
from typing import Self

__all__ = ["CAN_PART", "Network"]

CAN_PART = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("ip") is not None


class Network:
    """`members` namespaces; the addresses are of the range that is set aside for benchmarks."""

    def __init__(self, members: int) -> None:
        self._token = secrets.token_hex(3)
        self._bridge = f"inb{self._token}"
        self.subnet = f"198.18.{random.SystemRandom().randrange(256)}"
        self._count = members
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    @property
    def namespaces(self) -> tuple[str, ...]:
        return tuple(f"in{self._token}-{member}" for member in range(self._count))

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"{self.subnet}.{member + 2}" for member in range(self._count))

    def part(self, member: int) -> None:
        """The others and it see nothing of each other any more, and are not told."""
        for other in self._others(member):
            self._blackhole("add", member, other)
            self._blackhole("add", other, member)

    def join(self, member: int) -> None:
        """End what `part` began."""
        for other in self._others(member):
            self._blackhole("del", member, other)
            self._blackhole("del", other, member)

    def unplug(self, member: int) -> None:
        """Nobody sees it any more, this machine neither."""
        _ip("link", "set", self._cable(member), "down")

    def plug(self, member: int) -> None:
        _ip("link", "set", self._cable(member), "up")

    def close(self) -> None:
        for namespace in self.namespaces:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", namespace)
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._bridge)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside

    def _build(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.subnet}.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for member in range(self._count):
            self._add(member)

    def _add(self, member: int) -> None:
        namespace, cable = self.namespaces[member], self._cable(member)
        _ip("netns", "add", namespace)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", cable, "master", self._bridge)
        _ip("link", "set", cable, "up")
        for words in (
            ("addr", "add", f"{self.hosts[member]}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", namespace, *words)

    def _cable(self, member: int) -> str:
        return f"inv{self._token}{member}"

    def _others(self, member: int) -> list[int]:
        return [other for other in range(self._count) if other != member]

    def _blackhole(self, how: str, at: int, to: int) -> None:
        _ip("-n", self.namespaces[at], "route", how, "blackhole", f"{self.hosts[to]}/32")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)
