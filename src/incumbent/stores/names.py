"""Valid names, and one injective encoding of keys for engines with a flat key space."""

from __future__ import annotations

import re
from functools import lru_cache

from incumbent.errors import ConfigError
from incumbent.model import ONCE, Key

NAME_MAX = 200
_NAME = re.compile(r"[A-Za-z0-9._:/@-]{1,200}", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9._:/@-]*", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,63}", re.ASCII)


def check_name(name: object) -> str:
    """Return `name`, or raise ConfigError saying what is wrong with it."""
    if not isinstance(name, str) or not is_name(name):
        raise ConfigError(
            f"{_shown(name)} is not a name: 1 to {NAME_MAX} characters of A-Z a-z 0-9 . _ : / @ -"
            ' and no ".."',
            name="name",
        )
    return name


def is_name(text: str) -> bool:
    """Whether `text` is a valid name."""
    return _NAME.fullmatch(text) is not None and ".." not in text


def check_prefix(prefix: object) -> str:
    """Return `prefix`, or raise ConfigError if it has what no name has."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"prefix={_shown(prefix)}: no name begins so", name="prefix")
    return prefix


def check_slot(slot: object) -> str:
    """Return `slot`, the ID of a piece of work, or raise ConfigError saying what is allowed."""
    if not isinstance(slot, str) or not is_slot(slot):
        raise ConfigError(
            f"slot={_shown(slot)}: 1 to {NAME_MAX} printable characters, with no blank at the ends;"
            f" {ONCE!r} and '{ONCE}/...' are incumbent's; of a longer ID take its sha256sum",
            name="slot",
        )
    return slot


def is_slot(text: str) -> bool:
    """Whether a caller may give a slot this name; other schedulers' IDs are taken as they are."""
    ours = text == ONCE or text.startswith(f"{ONCE}/")
    return 1 <= len(text) <= NAME_MAX and text.isprintable() and text == text.strip() and not ours


def make_key(namespace: object, name: object) -> Key:
    """The validated key; a namespace has no slash, so that `flat` can be undone."""
    try:
        return _checked_key(namespace, name)
    except TypeError:
        # An unhashable argument is no text, and the checks raise ConfigError for it.
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


MARK = "@-"
"""The beginning of an escape; hexadecimal digits of UTF-8 and a "-" follow."""
_DIGEST = "@-@"
_UNSAFE = re.compile(r"([^A-Za-z0-9._/@-]|\A\.|\.\Z|\.(?=\.)|(?<=\.)\.|@(?=-)|@\Z)+", re.ASCII)


def safe_name(part: str, /, *parts: str) -> str:
    """A readable name made of any texts; different texts make different names.

    Joins the parts by ":". ASCII letters, digits and `. _ / @ -` stay; a run of other characters
    becomes `@-`, its UTF-8 in hexadecimal, and `-`. Also escaped are ":", an empty part, "@" before
    "-" or at the end of a part, and a dot beside a dot or at an end. All other valid names stay the
    same; an escaped name is escaped once more (the function is not idempotent). Texts are compared
    by code points: composed and decomposed letters differ.

    A result longer than 200 characters is cut to 133, and "@-@" with the SHA-256 of the whole in
    hexadecimal follows: two such names are equal only if SHA-256 collides.

    Raises ConfigError if a part is no text.

    >>> safe_name("Müller GmbH", "bob+tag@x.org")
    'M@-c3bc-ller@-20-GmbH:bob@-2b-tag@x.org'
    """
    for text in (part, *parts):
        if not isinstance(text, str):
            raise ConfigError(f"safe_name takes texts, not {type(text).__name__}", name="name")
    return within_limit(":".join(map(escaped, (part, *parts))))


def escaped(text: str) -> str:
    """One escaped part of `safe_name`: it has no ":", and no dot at its ends."""
    return (
        _UNSAFE.sub(lambda run: f"{MARK}{run[0].encode('utf-8', 'surrogatepass').hex()}-", text)
        or f"{MARK}-"
    )


def within_limit(name: str) -> str:
    """`name`, or its beginning and a digest if it is too long."""
    if len(name) <= NAME_MAX:
        return name
    from hashlib import sha256

    digest = f"{_DIGEST}{sha256(name.encode()).hexdigest()}"
    return f"{name[: NAME_MAX - len(digest)]}{digest}"


def _shown(value: object) -> str:
    if not isinstance(value, str):
        return f"a value of type {type(value).__name__}"
    text = repr(value[:60])[:60]
    return text if len(value) <= 50 else f"{text}... ({len(value)} characters)"
