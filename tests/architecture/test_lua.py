"""A text that scripts include says at its head what it uses of the others, and sets for them."""

from __future__ import annotations

import re

from tests.architecture.source import PACKAGE

EVERYWHERE = (
    "and break do else elseif end false for function if in local nil not or repeat return then"
    " true until while redis string math table ipairs type tonumber tostring unpack KEYS ARGV"
    " FIELD call try"
)
TEXTS = [
    text
    for path in sorted(PACKAGE.rglob("*.lua"))
    for text in re.split(r"^-- PART \w+\n", path.read_text(), flags=re.MULTILINE)
]
LOCAL = r"local (?!function)(\w+(?:, \w+)*)|local function (\w+)"
BOUND = rf"(?:local )?function ?(\w*)\(([^)]*)\)|{LOCAL}|for (\w+(?:, \w+)*) (?:=|in) "


def _words(pattern: str, text: str) -> set[str]:
    code = re.sub(r"--.*|'(?:\\.|[^'])*'|[{,]\s*\w+ = (?=[^{}]*})", " ", text)
    found = re.findall(pattern, code, re.MULTILINE)
    return set(re.findall(r"\w+", str(found))) - {*EVERYWHERE.split()}


def _free(text: str) -> set[str]:
    return _words(r"(?<![\w.])[a-zA-Z_]\w*", text) - _words(BOUND, text)


def _said(word: str, text: str) -> set[str]:
    lines = re.findall(rf"^-- {word}: (.*(?:\n--   .*)*)", text, re.MULTILINE)
    return set(re.findall(r"\w+", "".join(lines)))


def test_an_included_text_says_what_it_uses_and_sets() -> None:
    included = [text for text in TEXTS if "-- KEYS: " not in text]
    assert len(included) > 8
    for text in included:
        free, others = _free(text), set().union(*(_free(each) for each in TEXTS if each != text))
        sets = _words(rf"^(?:{LOCAL})", text) & others | _words(r"^ *(\w+) = ", text) & free
        assert (_said("Uses", text), _said("Sets", text)) == (free, sets), text
