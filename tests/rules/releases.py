"""Another release of the rules, and of the stores over them, beside this one in one process.

It is a copy of `incumbent.rules` and `incumbent.stores` in which some texts differ, imported under
another name. What they stand on (the model, errors, connections) is shared, so that both releases
are asked alike and answer alike.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import incumbent
from tests.rules import registers

__all__ = ["COUNTING", "Change", "Modules", "another", "counted", "this"]

Modules: TypeAlias = Callable[[str], Any]
"""The module of a release by its name below `incumbent`; "registers": tests.rules.registers."""
Change: TypeAlias = tuple[str, str, str]
"""A file below src/incumbent, a text that stands in it once, and what the release has instead."""

_PARTS = ("net", "protocol", "rules", "stores")
_IMPORT = re.compile(rf"^(\s*(?:from|import) )incumbent\.({'|'.join(_PARTS)})\b", re.MULTILINE)

COUNTING: tuple[Change, ...] = (
    ("rules/record.py", "    more: Mapping", "    counted: int = 0\n    more: Mapping"),
    ("rules/record.py", "self[5:11] == _PLAIN", "self[5:11] == _PLAIN and not self.counted"),
    ("rules/codec.py", '*("line", ', '*("counted", "line", '),
    (
        "rules/codec.py",
        '        _instant(parts["keep"]),\n',
        '        _instant(parts["keep"]),\n        parts.get("counted", {"é": [0]})["é"][0],\n',
    ),
    (
        "rules/codec.py",
        "    if record.last:\n",
        (
            '    if record.counted:\n        parts["counted"] = {"é": [record.counted]}\n'
            "    if record.last:\n"
        ),
    ),
    (
        "rules/keeping.py",
        "        version=version,\n",
        "        version=version,\n        counted=record.counted + (value is not None),\n",
    ),
    (
        "rules/taking.py",
        "        granted=record.granted + 1,\n",
        (
            "        granted=record.granted + 1,\n"
            "        counted=record.counted + bool(record.counted),\n"
        ),
    ),
)
"""A release whose records have a part that this one does not know: how often a field was put and,
from then on, the name granted, by a client of that release."""


def counted(part: object) -> int:
    """The number in that part of a record."""
    return int(part["é"][0]) if isinstance(part, dict) else 0


def this(module: str) -> ModuleType:
    """A module of this release."""
    return registers if module == "registers" else import_module(f"incumbent.{module}")


@contextmanager
def another(name: str, folder: Path, changes: Sequence[Change]) -> Iterator[Modules]:
    """Another release, as the package `name`, made in `folder`."""
    _copy(folder / name, name, changes)
    sys.path.insert(0, str(folder))
    invalidate_caches()
    try:
        yield lambda module: import_module(f"{name}.{module}")
    finally:
        sys.path.remove(str(folder))
        for module in [it for it in sys.modules if it.partition(".")[0] == name]:
            del sys.modules[module]


def _copy(package: Path, name: str, changes: Sequence[Change]) -> None:
    # Not that of the checkout: it may be a mutant of it.
    sources = Path(incumbent.__file__).parent
    texts = {
        str(path.relative_to(sources)): path.read_text()
        for part in _PARTS
        for path in (sources / part).rglob("*")
        if path.suffix in (".py", ".sql", ".lua")
    }
    for file, old, new in changes:
        assert texts[file].count(old) == 1, (file, old)
        texts[file] = texts[file].replace(old, new)
    texts["registers.py"] = Path(registers.__file__).read_text()
    texts["__init__.py"] = ""
    for file, text in texts.items():
        path = package / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_IMPORT.sub(rf"\1{name}.\2", text))
