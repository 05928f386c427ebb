"""Puts the lease machine's transitions into docs/how-it-works.md, from the code itself."""

from __future__ import annotations

from pathlib import Path

from incumbent.lease import TRANSITIONS, Input, LeaseState

PAGE = Path(__file__).parent.parent / "docs" / "how-it-works.md"
BEGIN, END = "<!-- transitions: begin -->", "<!-- transitions: end -->"


def table() -> str:
    """One row a state: what it means, and where each input leads."""
    lines = ["| state | meaning | inputs |", "|---|---|---|"]
    lines += [f"| {state.name} | {state.value} | {_inputs(state)} |" for state in LeaseState]
    return "\n".join(lines)


def _inputs(state: LeaseState) -> str:
    to: dict[LeaseState, list[Input]] = {}
    for what, after in TRANSITIONS[state].items():
        to.setdefault(after, []).append(what)
    return "; ".join(
        f"{', '.join(what.name.lower() for what in inputs)} → "
        f"{'the same' if after is state else after.name}"
        for after, inputs in to.items()
    )


def page_with_table(page: str) -> str:
    """The page as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
