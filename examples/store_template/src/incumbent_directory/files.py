"""One JSON file a name, replaced as a whole; one file to lock while anybody reads and replaces.

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
from pathlib import Path
from typing import Any

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Key
from incumbent.stores.names import flat, unflat

__all__ = ["Files"]

_LOOK_EVERY = 0.002


class Files:
    """The documents of one directory: JSON objects, each of one name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def locked(self, until: float) -> Iterator[None]:
        """Nobody else reads or replaces meanwhile; StoreUnavailable if it takes too long."""
        with self._translated():
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait_for(lock, until)
            yield
        finally:
            os.close(lock)  # which unlocks it, however this ends

    def read(self, key: Key) -> dict[str, Any] | None:
        """The document of `key`, or None."""
        with self._translated():
            return self._load(self._path(key))

    def write(self, key: Key, document: dict[str, Any]) -> None:
        """Replace the document of `key`; when this returns it outlives a loss of power."""
        path = self._path(key)
        fresh = path.with_suffix(".new")
        with self._translated():
            with fresh.open("w") as file:
                json.dump({"key": flat(key), **document}, file)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def names(self) -> list[Key]:
        """The names that have a document."""
        with self._translated():
            found = [self._load(path) for path in self._folder.glob("*.json")]
            return [unflat(document["key"]) for document in found if document]

    # Not the name itself: 200 bytes with slashes in them fit into no file name.
    def _path(self, key: Key) -> Path:
        return self._folder / f"{hashlib.sha256(flat(key).encode()).hexdigest()}.json"

    def _load(self, path: Path) -> dict[str, Any] | None:
        try:
            document = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        if not isinstance(document, dict):
            raise TypeError(f"{path} is no JSON object")
        return document

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
    def _translated(self) -> Iterator[None]:
        """Errors of the system become the one answer that they mean, in this one place.

        A document that cannot be read counts as "don't know who holds it", never as "free".
        """
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"{self._folder}: {error.strerror}; give it a directory that it may write to",
                permanent=isinstance(error, PermissionError | NotADirectoryError),
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise StoreUnavailable(
                f"{self._folder}: a file in it is not one of this store", permanent=True
            ) from error
