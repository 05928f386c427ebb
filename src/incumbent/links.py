"""From what a user names as `store=` to the one link that this process has of it."""

from __future__ import annotations

import weakref
from typing import Any, Final

from incumbent._drive.link import Link
from incumbent.store_url import store_url
from incumbent.stores.registry import engine_for_object, open_engine

__all__ = ["link_for", "new_link", "own_link"]

_by_url: Final[dict[str, Link]] = {}
_by_object: Final[weakref.WeakKeyDictionary[Any, Link]] = weakref.WeakKeyDictionary()


def link_for(store: Any) -> Link:
    """The shared link of a URL, a driver object, a client's own link, or (None) the default.

    Raises ConfigError for what cannot be a store, and where the default would be unsafe.
    """
    if store is None:
        store = store_url()
    if isinstance(store, Link):
        return store
    own = getattr(store, "_link", None)
    if isinstance(own, Link):
        return own
    if not isinstance(store, str):
        # Before it becomes a key: this is where what is no store at all is refused.
        engine_for_object(store)
    known: Any = _by_url if isinstance(store, str) else _by_object
    link: Link | None = known.get(store)
    if link is None:
        # In one step, and without a lock: a signal handler or a fork's child could find it taken.
        link = known.setdefault(store, new_link(store))
    return link


def own_link(store: Any) -> Link:
    """A link that the caller may close, for nobody shares it; if `store` is a client, the client's.

    Raises as `link_for`.
    """
    if isinstance(store, Link) or isinstance(getattr(store, "_link", None), Link):
        return link_for(store)
    return new_link(store_url() if store is None else store)


def new_link(store: Any) -> Link:
    return Link(open_engine(store) if isinstance(store, str) else engine_for_object(store))
