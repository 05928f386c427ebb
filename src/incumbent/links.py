"""From what a user names as `store=` to the one link that this process has of it."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Any, Final

from incumbent._drive.link import Link
from incumbent.errors import ConfigError
from incumbent.stores.registry import engine_for_object, open_engine

__all__ = ["default_url", "link_for", "new_link"]

_by_url: Final[dict[str, Link]] = {}
_by_object: Final[weakref.WeakKeyDictionary[Any, Link]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def link_for(store: Any) -> Link:
    """The shared link of a URL, a driver object, a client's own link, or (None) the default.

    Raises ConfigError for what cannot be a store, and where the default would be unsafe.
    """
    if store is None:
        store = default_url()
    if isinstance(store, Link):
        return store
    own = getattr(store, "_link", None)
    if isinstance(own, Link):
        return own
    if not isinstance(store, str):
        # Before it becomes a key: this is where what is no store at all is refused.
        engine_for_object(store)
    with _lock:
        return _by_url_or_object(store)


def _by_url_or_object(store: Any) -> Link:
    known: Any = _by_url if isinstance(store, str) else _by_object
    link: Link | None = known.get(store)
    if link is None:
        link = known[store] = new_link(store)
    return link


def new_link(store: Any) -> Link:
    """A link that is shared with nobody; the caller closes it."""
    return Link(open_engine(store) if isinstance(store, str) else engine_for_object(store))


def default_url() -> str:
    """INCUMBENT_STORE, the content of INCUMBENT_STORE_FILE, or this host's own SQLite file.

    Raises ConfigError inside a container: each replica would have a file, and lead, of its own.
    """
    if url := os.environ.get("INCUMBENT_STORE"):
        return url
    if path := os.environ.get("INCUMBENT_STORE_FILE"):
        return _read_url(path)
    from incumbent.stores.sqlite.placement import detect_here

    where = detect_here()
    if where is not None:
        raise ConfigError(
            f"no store was named, and this is {where}: every replica would have a SQLite file of"
            " its own, and each would lead. Set INCUMBENT_STORE=redis://..., or --store sqlite: if"
            " this is the only one",
            name="store",
        )
    return "sqlite:"


def _read_url(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(
            f"INCUMBENT_STORE_FILE={path} cannot be read: {error.strerror}", name="store"
        ) from error
