"""One JSON file a key, replaced as a whole; one file to lock while anybody reads and replaces.

Every call has `until`, an instant of `incumbent.clock.now`. A file is either replaced or it is
not, so an error here always means "certainly not applied"; a store behind a network has a third
answer, OutcomeUnknown, for a request that left and was not answered.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Key
from incumbent.stores.names import flat, unflat
from incumbent_directory.rules import Document

__all__ = ["Files"]

_LOOK_EVERY = 0.002


class Files:
    """The documents of one directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def locked(self, until: float) -> Iterator[None]:
        """Nobody else reads or replaces meanwhile; StoreUnavailable if it takes too long."""
        with _translated(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait_for(lock, until)
            yield
        finally:
            os.close(lock)  # which unlocks it, however this ends

    def read(self, key: Key) -> Document | None:
        """The document of `key`, or None."""
        with _translated(self._folder):
            return self._load(self._path(key))[1]

    def write(self, key: Key, document: Document) -> None:
        """Replace the document of `key`; when this returns it outlives a loss of power."""
        path = self._path(key)
        fresh = path.with_suffix(".new")
        with _translated(self._folder):
            with fresh.open("w") as file:
                json.dump({"key": flat(key), **asdict(document)}, file)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)

    def all(self) -> list[tuple[Key, Document]]:
        """Every document, in no order."""
        with _translated(self._folder):
            found = [self._load(path) for path in self._folder.glob("*.json")]
        return [(unflat(name), document) for name, document in found if document]

    # Not the name itself: 200 bytes with slashes in them fit into no file name.
    def _path(self, key: Key) -> Path:
        return self._folder / f"{hashlib.sha256(flat(key).encode()).hexdigest()}.json"

    def _load(self, path: Path) -> tuple[str, Document | None]:
        try:
            fields = json.loads(path.read_text())
        except FileNotFoundError:
            return "", None
        history = tuple(tuple(it) for it in fields.pop("history"))
        return fields.pop("key"), Document(**fields, history=history)

    def _wait_for(self, lock: int, until: float) -> None:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                return
            if clock.now() >= until:
                raise StoreUnavailable(f"{self._folder}/lock stayed locked by another process")
            time.sleep(_LOOK_EVERY)


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """Errors of the system become the one answer that they mean, in this one place.

    A document that cannot be read counts as "don't know who holds it", never as "free".
    """
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"{folder}: {error.strerror}; give incumbent a directory that it may write to",
            permanent=isinstance(error, PermissionError | NotADirectoryError),
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise StoreUnavailable(f"{folder}: a file in it is not one of this store") from error
