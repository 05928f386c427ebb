"""How docstrings become pages of the reference: examples are code, explained names are a list."""

import re

import griffe

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
    items = "\n".join(f"- {item.strip()}" for item in explained)
    return f"{before.strip()}\n\n{items}" if before.strip() else items


class Markup(griffe.Extension):
    """Named in mkdocs.yml."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = marked_up(obj.docstring.value)
