"""The clock and the identity of the *host*, the same in each of its containers.

A time namespace shifts CLOCK_BOOTTIME by an offset of its own at the same boot id
(time_namespaces(7)); ttls in a file that two of them share must not be counted on shifted clocks.
What cannot be read is refused: a guess would let one container steal from another.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from incumbent import clock
from incumbent.errors import StoreUnavailable

__all__ = ["Host", "boottime_offset", "this_host"]

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_OFFSETS: Final = "/proc/self/timens_offsets"
_OUR_NAMESPACE: Final = "/proc/self/ns/time"
_CHILDRENS_NAMESPACE: Final = "/proc/self/ns/time_for_children"


@dataclass(frozen=True, slots=True)
class Host:
    """`now`: seconds since the host's boot, suspend included; `wall`: seconds since 1970."""

    now: Callable[[], float]
    wall: Callable[[], float]
    boot_id: str


def this_host(platform: str = sys.platform) -> Host:
    """The host this process runs on.

    Raises StoreUnavailable (permanent) where its boot id or its boot time cannot be known.
    """
    if platform == "linux":
        return Host(_host_clock(), clock.wall, _linux_boot_id())
    return Host(_other_clock, clock.wall, _other_boot_id())  # pragma: no cover - not Linux


def boottime_offset(offsets: str) -> float:
    """Seconds that a time namespace adds to the host's boot time; ValueError if not to be read."""
    for line in offsets.splitlines():
        name, *numbers = line.split()
        # Older kernels print the clock's number (7) in place of its name.
        if name in {"boottime", "7"}:
            seconds, nanoseconds = numbers
            return int(seconds) + int(nanoseconds) / 1e9
    raise ValueError("no line for boottime")


def _host_clock() -> Callable[[], float]:
    offset = _offset_of_this_process()
    if not offset:
        return clock.now
    return lambda: clock.now() - offset


def _offset_of_this_process() -> float:
    try:
        offsets = Path(_OFFSETS).read_text()
    except FileNotFoundError:
        return 0.0  # this kernel has no time namespaces
    except OSError as error:
        raise _unknowable(f"{_OFFSETS} cannot be read ({error.strerror})") from error
    try:
        # The file speaks of the namespace of children; ours is another between unshare and exec.
        if Path(_OUR_NAMESPACE).readlink() != Path(_CHILDRENS_NAMESPACE).readlink():
            raise _unknowable("this process has left its children another time namespace")
        return boottime_offset(offsets)
    except (OSError, ValueError) as error:
        raise _unknowable(f"{_OFFSETS} makes no sense ({error})") from error


def _linux_boot_id() -> str:
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        boot_id = Path(_BOOT_ID).read_text().strip()
    except OSError as error:
        raise _unknowable(f"{error.filename} cannot be read ({error.strerror})") from error
    # systemd-nspawn mounts a random one over it, so that its containers would look rebooted.
    if f" {_BOOT_ID} " in mounts:
        raise _unknowable(f"{_BOOT_ID} is hidden by a mount, so it is not the host's")
    return boot_id


def _unknowable(what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the boot time of the host cannot be known: {what}. Leases in a file count on it; use"
        " a network store such as redis://host here",
        permanent=True,
    )


def _other_clock() -> float:  # pragma: no cover - not Linux
    # macOS counts sleep in CLOCK_MONOTONIC, and not in what time.monotonic() reads there.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _other_boot_id() -> str:  # pragma: no cover - not Linux
    import subprocess

    command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError) as error:
        raise _unknowable(f"{' '.join(command)} failed") from error
    return found.stdout.strip()
