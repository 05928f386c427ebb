"""How docstrings become pages of the reference: examples are code, explained names are a list.

An item of the list is one sentence; what follows the last one is a paragraph.
"""

import re

import griffe

_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z`])")
_EXPLAINED = re.compile(r"(?:(?<=^)|(?<=[.;)] ))(?=`\w+`(?: \([^)]*\))?: )")


def marked_up(text: str) -> str:
    """The docstring as Markdown."""
    return "\n\n".join(map(_paragraph, text.split("\n\n")))


def _paragraph(text: str) -> str:
    if text.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    line = " ".join(text.split("\n"))
    before, *explained = _EXPLAINED.split(line)
    if len(explained) < 2 or line.startswith(("- ", "|", "    ")):
        return text
    explained[-1], *after = _SENTENCE.split(explained[-1], maxsplit=1)
    items = "\n".join(f"- {item.strip()}" for item in explained)
    return "\n\n".join(part for part in (before.strip(), items, *after) if part)


class Markup(griffe.Extension):
    """Named in mkdocs.yml."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = marked_up(obj.docstring.value)
