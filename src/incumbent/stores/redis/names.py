"""Where the record of a key lives on the server.

The companions carry the key in braces, so that a cluster keeps them in the slot of the main key.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from incumbent.model import Key
from incumbent.stores.names import flat, unflat

_CACHED: Final = 1024
_GLOB: Final = re.compile(r"([*?\[\]\\^])")


def quoted(text: str) -> str:
    """`text` without spaces: its bytes in percent notation where that is needed."""
    return quote(text, safe="!#$&'()*+,/:;<=>?@[]^`{|}\"\\")


class Names:
    """The keys and the channel of one lease, as texts."""

    __slots__ = ("candidates", "channel", "companion", "key", "line", "main", "sharers", "slots")

    def __init__(self, key: Key, main: str, tag: str) -> None:
        self.key = key
        self.main = main
        self.companion = f"incumbent:{{{tag}}}:r"
        self.channel = f"incumbent:{{{tag}}}:c"
        self.slots = f"incumbent:{{{tag}}}:s:"
        self.candidates = f"incumbent:{{{tag}}}:w"
        self.line = f"incumbent:{{{tag}}}:q"
        self.sharers = f"incumbent:{{{tag}}}:p"

    def slot(self, name: str) -> str:
        """The key of a slot's tombstone."""
        return self.slots + quoted(name)


class Naming:
    """From keys to names and back; `template` is the option `key=` (see options)."""

    def __init__(self, template: str | None) -> None:
        self._template = template
        self._cache: dict[Key, Names] = {}

    def of(self, key: Key) -> Names:
        """The names of `key`."""
        names = self._cache.get(key)
        if names is None:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            names = self._cache[key] = self._make(key)
        return names

    def keys_of(self, key: Key, shared: bool = False) -> tuple[bytes, ...]:
        """The main key, the companion, and those who share it, without keeping them."""
        if self._template is None:
            main = tagged = b"incumbent:{%b}" % flat(key).encode()
        else:
            main = self._fill(key.namespace, key.name).encode()
            tagged = b"incumbent:{%b}" % main
        return (main, tagged + b":r", tagged + b":p") if shared else (main, tagged + b":r")

    def _make(self, key: Key) -> Names:
        if self._template is None:
            return Names(key, f"incumbent:{{{flat(key)}}}", flat(key))
        main = self._fill(key.namespace, key.name)
        return Names(key, main, main)

    def _fill(self, namespace: str, name: str) -> str:
        template = self._template or ""
        return template.replace("{namespace}", namespace).replace("{name}", name)

    def patterns(self, namespace: str, prefix: str) -> list[str]:
        """SCAN patterns that cover every key of a lease whose name begins with `prefix`."""
        if self._template is None:
            return [f"incumbent:{{{_escaped(namespace)}/{_escaped(prefix)}*"]
        head, _, tail = self._template.partition("{name}")
        start = head.replace("{namespace}", namespace)
        end = tail.replace("{namespace}", namespace)
        main = f"{_escaped(start + prefix)}*{_escaped(end)}"
        return [main, f"incumbent:{{{main}}}:[bhrs]*"]

    def key_of(self, found: str, namespace: str) -> Key | None:
        """The lease that a key on the server belongs to."""
        inner = re.fullmatch(r"incumbent:\{(.*)\}(?::[bhrwqp]|:s:.*)?", found)
        if self._template is None or (inner is None and found.startswith("incumbent:{")):
            return unflat(inner[1]) if inner else None
        pattern = re.escape(self._fill(namespace, "\0")).replace(re.escape("\0"), "(.+)")
        name = re.fullmatch(pattern, inner[1] if inner else found)
        return Key(namespace, name[1]) if name else None


def _escaped(text: str) -> str:
    return _GLOB.sub(r"\\\1", text)
