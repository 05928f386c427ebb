"""What file system a path lies on, and whether several kernels may share it.

SQLite's write-ahead log needs memory shared by all its users (https://sqlite.org/wal.html,
"Overview", disadvantage 2), and our ttls are counted on one kernel's clock: both end at the host.
The type comes from /proc/self/mountinfo, proc(5), whose names are those of mount(8).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from incumbent.errors import ConfigError

__all__ = ["UNKNOWN", "check_file_system", "file_system_of", "is_doubtful", "type_in", "verdict"]

UNKNOWN: Final = ""

_SHARED: Final = frozenset(
    {
        # network and cluster file systems
        "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph",
        "glusterfs", "lustre", "beegfs", "gpfs", "gfs2", "ocfs2", "orangefs", "pvfs2",
        # folders of another kernel: the host of a virtual machine, or Docker Desktop's
        "9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "osxfs", "grpcfuse", "fakeowner",
        # the same through FUSE; type_in has cut "fuse." off
        "sshfs", "s3fs", "rclone", "vmhgfs-fuse", "ceph-fuse", "goofys", "gcsfuse", "blobfuse",
        "blobfuse2", "davfs", "davfs2", "juicefs", "seaweedfs", "moosefs", "mfs", "cephfs",
        "gvfsd-fuse", "smbnetfs", "hdfs", "curlftpfs",
    }
)  # fmt: skip


def type_in(mountinfo: str, path: str) -> str:
    """The type of the mount that holds the absolute, resolved `path`; "" if none is listed."""
    best, found = -1, UNKNOWN
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.partition(" ")[0]
        if len(fields) < 5 or not kind:
            continue
        point = _unescaped(fields[4])
        # Not strictly longer: of two mounts on one point the later one covers the earlier.
        if len(point) >= best and _within(path, point):
            best, found = len(point), kind
    return found


def verdict(kind: str) -> str | None:
    """Why a file of this type must not hold leases, or None."""
    if kind.removeprefix("fuse.") in _SHARED:
        return f"{kind} can be shared with other machines or kernels"
    return None


def is_doubtful(kind: str) -> bool:
    """Whether only its owner can know if the file system is local."""
    return kind == UNKNOWN or kind.startswith("fuse")


def file_system_of(path: Path) -> str:
    """The type of the file system under `path`, which need not exist yet; "" where none says."""
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return UNKNOWN
    return type_in(mountinfo, os.path.realpath(path))


def check_file_system(path: Path, kind_of: Callable[[Path], str] = file_system_of) -> None:
    """Raise ConfigError if `path` lies where locks do not exclude."""
    reason = verdict(kind_of(path))
    if reason:
        raise ConfigError(
            f"{path} cannot hold leases: {reason}, and a lease in a file excludes on one host only."
            " Name a path on a local disk, or a network store such as redis://host",
            name="store",
        )


def _within(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescaped(point: str) -> str:
    if "\\" not in point:
        return point
    for code in ("\\040", "\\011", "\\012", "\\134"):
        point = point.replace(code, chr(int(code[1:], 8)))
    return point
