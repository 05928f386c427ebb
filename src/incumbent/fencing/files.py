"""A file that is replaced as a whole, and only by a holder whose token is not too old."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from incumbent.errors import StoreError
from incumbent.fencing.token import Fenced, refused


def replace_file(lease: Fenced, path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path` if `lease` may: as a whole, on disk, and by a rename.

    Beside the file lies `PATH.token` with the largest token that wrote it. Keep it, and write with
    this function alone: it is locked (flock) while the file is replaced, so a later holder waits
    for a write that passed before it. A reader sees the old data or the new. All writers have to
    share a file system and its locks: a local one, or NFS 4. After a crash between its steps it can
    only refuse more.

    Raises LeaseLost, also if the lease is not proved any more, StoreError for a `PATH.token` that
    is no token, and OSError; the old file is intact then.
    """
    lease.check()
    target = Path(path)
    with _locked(Path(f"{target}.token")) as guard:
        seen = _seen(guard, target)
        if lease.fencing_token < seen:
            raise refused(str(target), lease.fencing_token, seen)
        if lease.fencing_token > seen:
            # In place and of one length: there is no instant without a token.
            os.pwrite(guard, b"%020d" % lease.fencing_token, 0)
            os.fsync(guard)
        _replace(target, data)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    import fcntl  # not on Windows, where the rest of the package can be imported

    guard = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield guard
    finally:
        os.close(guard)


def _seen(guard: int, target: Path) -> int:
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
    # Its name can be always the same: the lock leaves one writer. Leftovers are overwritten.
    new = target.with_name(f".{target.name}.new")
    with new.open("wb") as file:
        with suppress(FileNotFoundError):
            os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
