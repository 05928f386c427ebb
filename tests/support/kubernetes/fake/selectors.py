"""labelSelector and fieldSelector of lists and watches."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.kubernetes.fake.statuses import Json, bad_request

__all__ = ["Selector"]

Test = Callable[[Json], bool]

_EQUALS = re.compile(r"\s*([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=,()]*)\s*")
_AMONG = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^()]*)\)\s*")
_EXISTS = re.compile(r"\s*(!?)\s*([^\s!=,()]+)\s*")
_FIELDS = {"metadata.name": "name", "metadata.namespace": "namespace"}


@dataclass
class Selector:
    """What a list or watch chooses; raises Refused (400) for what it cannot read."""

    labels: str = ""
    fields: str = ""
    _tests: list[Test] = field(init=False)

    def __post_init__(self) -> None:
        self._tests = [_label(part) for part in _parts(self.labels)]
        self._tests += [_field(part) for part in _parts(self.fields)]

    @property
    def chooses(self) -> bool:
        return bool(self._tests)

    def fits(self, made: Json) -> bool:
        return all(test(made) for test in self._tests)


def _parts(text: str) -> list[str]:
    """Split at commas outside of parentheses."""
    return [part for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _labels_of(made: Json) -> dict[str, str]:
    return made["metadata"].get("labels") or {}


def _label(part: str) -> Test:
    if found := _AMONG.fullmatch(part):
        key, among = found[1], {value.strip() for value in found[3].split(",")}
        if found[2] == "in":
            return lambda made: _labels_of(made).get(key) in among
        return lambda made: _labels_of(made).get(key) not in among
    if found := _EQUALS.fullmatch(part):
        key, sign, value = found.groups()
        if sign == "!=":
            return lambda made: _labels_of(made).get(key) != value
        return lambda made: _labels_of(made).get(key) == value
    if found := _EXISTS.fullmatch(part):
        absent, key = bool(found[1]), found[2]
        return lambda made: (key in _labels_of(made)) is not absent
    raise bad_request(f"unable to parse requirement: {part!r}")


def _field(part: str) -> Test:
    found = _EQUALS.fullmatch(part)
    if found is None or found[1] not in _FIELDS:
        raise bad_request(f"field label not supported: {part}")
    name, sign, value = _FIELDS[found[1]], found[2], found[3]
    return lambda made: (made["metadata"].get(name) == value) is (sign != "!=")
