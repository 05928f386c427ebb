"""Which names there are, and one injective encoding of them for engines with a flat key space."""

from __future__ import annotations

import re
from functools import lru_cache

from incumbent.errors import ConfigError
from incumbent.model import Key

NAME_MAX = 200
_NAME = re.compile(r"[A-Za-z0-9._:/@-]{1,200}", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,63}", re.ASCII)


def check_name(name: object) -> str:
    """Return `name`, or raise ConfigError saying what is wrong with it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise ConfigError(
            f"{_shown(name)} is not a name: 1 to {NAME_MAX} characters of A-Z a-z 0-9 . _ : / @ -"
            ' and no ".."',
            name="name",
        )
    return name


def make_key(namespace: object, name: object) -> Key:
    """The validated key; a namespace has no slash, so that `flat` can be undone."""
    try:
        return _checked_key(namespace, name)
    except TypeError:
        # What cannot be looked up is no text: the checks say so.
        return _checked_key.__wrapped__(namespace, name)


@lru_cache(maxsize=256, typed=True)
def _checked_key(namespace: object, name: object) -> Key:
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace) or ".." in namespace:
        raise ConfigError(
            f"{_shown(namespace)} is not a namespace: 1 to 63 characters of A-Z a-z 0-9 . _ -"
            ' and no ".."',
            name="namespace",
        )
    return Key(namespace, check_name(name))


def flat(key: Key) -> str:
    """`namespace/name`: injective, because a namespace has no slash."""
    return f"{key.namespace}/{key.name}"


def unflat(text: str) -> Key:
    """Undo `flat`."""
    namespace, _, name = text.partition("/")
    return Key(namespace, name)


def _shown(value: object) -> str:
    if not isinstance(value, str):
        return f"a value of type {type(value).__name__}"
    text = repr(value[:60])[:60]
    return text if len(value) <= 50 else f"{text}... ({len(value)} characters)"
