"""What users may import: each public name with its signature.

python -m tests.release.public     writes public.txt anew; the change needs a fragment in changes/
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from incumbent.locks.candidacy import ElectionSettings
from incumbent.locks.options import LockSettings

KEPT = Path(__file__).with_name("public.txt")
MODULES = (
    *("incumbent", "incumbent.errors", "incumbent.fencing", "incumbent.metrics"),
    *("incumbent.model", "incumbent.page.asgi"),
    *("incumbent.stores.base", "incumbent.stores.inline"),
    *("incumbent.rules.codec", "incumbent.stores.deciding", "incumbent.stores.pooled_registers"),
    *("incumbent.stores.registers", "incumbent.stores.register_store"),
    *("incumbent.stores.mysql", "incumbent.stores.postgresql", "incumbent.stores.threaded"),
    *("incumbent.testing.clients", "incumbent.testing.contract", "incumbent.testing.proxy"),
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def public_names() -> list[str]:
    """One line a name, in order."""
    names = {line for module in MODULES for line in _of_module(module)}
    return sorted(names | set(_settings()))


def _settings() -> Iterator[str]:
    """The keywords of locks and elections, which their signatures call `**settings`."""
    for kind in (LockSettings, ElectionSettings):
        for name, asked in kind.__annotations__.items():
            yield f"{kind.__name__}.{name}: {getattr(asked, '__forward_arg__', asked)}"


def _of_module(name: str) -> Iterator[str]:
    module = import_module(name)
    for public in module.__all__:
        yield from _of_object(f"{name}.{public}", getattr(module, public))


def _of_object(name: str, value: Any) -> Iterator[str]:
    yield f"{name}{_signature(value)}"
    if inspect.isclass(value):
        for member in sorted(dir(value)):
            # The cases of a suite are no interface.
            if not member.startswith(("_", "test_")) and _is_ours(value, member):
                found = inspect.getattr_static(value, member)
                function = getattr(found, "__func__", found)
                yield f"{name}.{member}{_signature(function)}"


def _is_ours(value: type, member: str) -> bool:
    homes = (home for home in value.__mro__ if member in vars(home))
    return next(homes).__module__.startswith("incumbent")


def _signature(value: Any) -> str:
    if not callable(value):
        return ""
    try:
        return _ADDRESS.sub("", str(inspect.signature(value)))
    except ValueError:
        return ""


if __name__ == "__main__":
    KEPT.write_text("\n".join(public_names()) + "\n")
