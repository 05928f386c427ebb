"""The host of this process: its clock and identity, its file systems, and containers.

A file excludes on its own host only. SQLite's write-ahead log needs memory shared by all its users
(https://sqlite.org/wal.html, "Overview", disadvantage 2), and ttls are counted on one kernel's
clock. A time namespace shifts CLOCK_BOOTTIME by an offset, but keeps the boot id
(time_namespaces(7)), so the offset is subtracted. If facts about the clock cannot be read, the file
is refused: with a guess one container could steal the lease of another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from incumbent import clock
from incumbent.errors import ConfigError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_MOUNTS: Final = "/proc/self/mountinfo"
_OFFSETS: Final = "/proc/self/timens_offsets"
_OUR_NAMESPACE: Final = "/proc/self/ns/time"
_CHILDRENS_NAMESPACE: Final = "/proc/self/ns/time_for_children"

# -- the clock and the boot ------------------------------------------------------------------


class Host(NamedTuple):
    """`now`: seconds since the host's boot, suspend included; `wall`: seconds since 1970."""

    now: Callable[[], float]
    wall: Callable[[], float]
    boot_id: str


def this_host(platform: str = sys.platform) -> Host:
    """The host of this process, the same in each of its containers.

    Raises StoreUnavailable (permanent) if its boot id or its boot time cannot be read.
    """
    if platform == "linux":
        offset = _offset_of_this_process()
        now = (lambda: clock.now() - offset) if offset else clock.now
        return Host(now, clock.wall, _linux_boot_id())
    return Host(clock.now, clock.wall, _other_boot_id())  # pragma: no cover - not Linux


def boottime_offset(offsets: str) -> float:
    """Seconds that a time namespace adds to the host's boot time. ValueError if unreadable."""
    for line in offsets.splitlines():
        name, *numbers = line.split()
        # Older kernels print the clock's number (7) in place of its name.
        if name in {"boottime", "7"}:
            seconds, nanoseconds = numbers
            return int(seconds) + int(nanoseconds) / 1e9
    raise ValueError("no line for boottime")


def _offset_of_this_process() -> float:
    try:
        offsets = Path(_OFFSETS).read_text()
    except FileNotFoundError:
        return 0.0  # this kernel has no time namespaces
    except OSError as error:
        raise_if_from_signal(error)
        raise _unknowable(f"{_OFFSETS} cannot be read ({error.strerror})") from error
    try:
        # The file describes the children's namespace, which differs from ours after an unshare.
        if Path(_OUR_NAMESPACE).readlink() != Path(_CHILDRENS_NAMESPACE).readlink():
            raise _unknowable("this process has left its children another time namespace")
        return boottime_offset(offsets)
    except (OSError, ValueError) as error:
        raise_if_from_signal(error)
        raise _unknowable(f"{_OFFSETS} makes no sense ({error})") from error


def _linux_boot_id() -> str:
    try:
        mounts = Path(_MOUNTS).read_text(errors="surrogateescape")
        boot_id = Path(_BOOT_ID).read_text().strip()
    except OSError as error:
        raise_if_from_signal(error)
        raise _unknowable(f"{error.filename} cannot be read ({error.strerror})") from error
    # systemd-nspawn mounts a random boot id over it, which would make its containers look rebooted.
    if f" {_BOOT_ID} " in mounts:
        raise _unknowable(f"{_BOOT_ID} is hidden by a mount, so it is not the host's")
    return boot_id


def _other_boot_id() -> str:  # pragma: no cover - not Linux
    import subprocess

    command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
    except (OSError, subprocess.SubprocessError) as error:
        raise_if_from_signal(error)
        raise _unknowable(f"{' '.join(command)} failed") from error
    return found.stdout.strip()


def _unknowable(what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the boot time of the host cannot be known: {what}. Leases in a file count on it; use"
        " a network store such as redis://host here",
        permanent=True,
    )


# -- file systems ----------------------------------------------------------------------------

_SHARED: Final = frozenset(
    {
        # network and cluster file systems
        "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph",
        "glusterfs", "lustre", "beegfs", "gpfs", "gfs2", "ocfs2", "orangefs", "pvfs2",
        # folders of another kernel: the host of a virtual machine, or Docker Desktop's
        "9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "osxfs", "grpcfuse", "fakeowner",
        # the same through FUSE, without "fuse."
        "sshfs", "s3fs", "rclone", "vmhgfs-fuse", "ceph-fuse", "goofys", "gcsfuse", "blobfuse",
        "blobfuse2", "davfs", "davfs2", "juicefs", "seaweedfs", "moosefs", "mfs", "cephfs",
        "gvfsd-fuse", "smbnetfs", "hdfs", "curlftpfs",
    }
)  # fmt: skip


def type_in(mountinfo: str, path: str) -> str:
    """The type of the mount that has the absolute, resolved `path`; "" if none is listed.

    `mountinfo` has the format of proc(5); types have the names of mount(8).
    """
    best, found = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.partition(" ")[0]
        if len(fields) < 5 or not kind:
            continue
        point = fields[4]
        for code in ("\\040", "\\011", "\\012", "\\134"):
            point = point.replace(code, chr(int(code[1:], 8)))
        # ">=", because of two mounts on one point the later mount covers the earlier.
        within = path == point or path.startswith(point.rstrip("/") + "/")
        if within and len(point) >= best:
            best, found = len(point), kind
    return found


def may_be_remote(kind: str) -> bool:
    """Whether this kind of file system may be remote: only the administrator can know."""
    return not kind or kind.startswith("fuse")


def file_system_of(path: Path) -> str:
    """The type of the file system under `path`, which need not exist yet; "" if it is unknown."""
    try:
        mountinfo = Path(_MOUNTS).read_text(errors="surrogateescape")
    except OSError as error:
        raise_if_from_signal(error)
        return ""
    return type_in(mountinfo, os.path.realpath(path))


def check_file_system(path: Path) -> None:
    """Raise ConfigError if locks on the file system of `path` do not exclude other hosts."""
    kind = file_system_of(path)
    if kind.removeprefix("fuse.") in _SHARED:
        raise ConfigError(
            f"{path} cannot hold leases: {kind} can be shared with other machines or kernels, and a"
            " lease in a file excludes on one host only. Name a path on a local disk, or a network"
            " store such as redis://host",
            name="store",
        )


# -- containers ------------------------------------------------------------------------------

_VARIABLES: Final = {
    "KUBERNETES_SERVICE_HOST": "a Kubernetes pod",
    "NOMAD_ALLOC_ID": "a Nomad allocation",
    "ECS_CONTAINER_METADATA_URI": "an ECS task",
    "ECS_CONTAINER_METADATA_URI_V4": "an ECS task",
    "AWS_LAMBDA_FUNCTION_NAME": "an AWS Lambda function",
    "K_SERVICE": "a Cloud Run or Knative service",
    "CONTAINER_APP_NAME": "an Azure container app",
    "FLY_ALLOC_ID": "a Fly.io machine",
    "DYNO": "a Heroku dyno",
}
_MARKERS: Final = {"/.dockerenv": "a Docker container", "/run/.containerenv": "a Podman container"}
_CGROUPS: Final = ("kubepods", "docker", "containerd", "libpod", "crio", "lxc", "garden", "ecs")


def detect_orchestrator(
    environ: Mapping[str, str], exists: Callable[[str], bool], read: Callable[[str], str]
) -> str | None:
    """The container of this process, such as "a Docker container (/.dockerenv exists)", or None.

    A container has files of its own: if each replica fell back to the default file, all would
    lead. `read` returns a file's text; if it raises OSError, that file gives no sign.
    """
    for variable, what in _VARIABLES.items():
        if environ.get(variable):
            return f"{what} ({variable} is set)"
    if kind := environ.get("container"):
        return f"a {kind} container (the variable container is set)"
    for path, what in _MARKERS.items():
        if exists(path):
            return f"{what} ({path} exists)"
    return _container_in_cgroup(read)


def detect_here() -> str | None:
    """`detect_orchestrator` for the environment of this process."""
    return detect_orchestrator(os.environ, os.path.exists, lambda path: Path(path).read_text())


def _container_in_cgroup(read: Callable[[str], str]) -> str | None:
    try:
        text = read("/proc/1/cgroup")
    except (OSError, UnicodeDecodeError) as error:
        raise_if_from_signal(error)
        return None
    for line in text.splitlines():
        path = line.rpartition(":")[2]
        # A part of the path must begin with the word, as in "/docker/3f2a" and "/kubepods.slice". A
        # host's "/system.slice/docker.service" only shows that Docker is installed.
        for part in path.split("/"):
            if part.startswith(_CGROUPS) and not part.endswith(".service"):
                return f"a container (/proc/1/cgroup has {path})"
    return None
