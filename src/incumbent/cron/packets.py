"""What an instance, its zygote and its runners tell each other: pickles with their length."""

from __future__ import annotations

import pickle
from struct import Struct
from typing import Any, Final

__all__ = ["packed", "unpacked"]

_HEAD: Final = Struct("=I")


def packed(message: Any) -> bytes:
    """As bytes of a stream."""
    body = pickle.dumps(message)
    return _HEAD.pack(len(body)) + body


def unpacked(data: bytes) -> tuple[list[Any], bytes]:
    """The whole messages at its beginning, and the rest."""
    found = []
    while len(data) >= _HEAD.size:
        (length,) = _HEAD.unpack_from(data)
        if len(data) < _HEAD.size + length:
            break
        # From a process of ours, over a socket that nobody else has.
        found.append(pickle.loads(data[_HEAD.size : _HEAD.size + length]))  # noqa: S301
        data = data[_HEAD.size + length :]
    return found, data
