"""Runs the code of a cell, and says in a word what came of it. Needs the standard library alone.

As a program it reads a JSON string a line, and answers in the same way: so the column of a library
that lives in another environment is run there.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import sys
import threading
from typing import Any

BODIES = {":": " _show(body())", "@": "\ndef work(order=7): return body()"}
"""What a cell leaves out, by its last or first character: the body of a `with`, a function."""
_of_thread = threading.local()


def execute(code: str, names: dict[str, Any]) -> str:
    """The value, as Python writes it if it is a plain one; else its type; or "raises ERROR"."""
    names["_show"] = lambda value: names.update(value=value)
    names["value"] = None
    if names.get("in_a_task"):
        code = f"await asyncio.sleep(0)\n{code}"
    try:
        result = eval(_compiled(code), names)
        if inspect.iscoroutine(result):
            _runner().run(result)
    except Exception as error:  # noqa: BLE001  # which one is what is asked for
        return f"raises {type(error).__name__}"
    names.setdefault("kept", []).append(names["value"])
    return _word(names["value"])


def finish(names: dict[str, Any]) -> None:
    """Give back what is still held, theirs and ours."""
    for it in [*names.get("kept", ()), *names.values()]:
        release = None if inspect.isclass(it) else getattr(it, "release", None)
        try:
            given = release() if callable(release) else None
            if inspect.iscoroutine(given):
                _runner().run(given)
        except Exception:  # noqa: BLE001  # most of it was given back before
            continue
    names.clear()
    if hasattr(_of_thread, "runner"):
        _of_thread.runner.close()


def _runner() -> asyncio.Runner:
    if not hasattr(_of_thread, "runner"):
        _of_thread.runner = asyncio.Runner()
    runner: asyncio.Runner = _of_thread.runner
    return runner


def _compiled(code: str) -> Any:
    last = code.splitlines()[-1]
    tree = ast.parse(code + (BODIES.get(last[-1]) or BODIES.get(last[0]) or ""))
    match tree.body[-1]:
        case ast.Expr(value=value) as end:
            end.value = ast.Call(ast.Name("_show", ast.Load()), [value], [])
        case ast.Assign(targets=[ast.Name(id=name)]):
            tree.body += ast.parse(f"_show({name})").body
    ast.fix_missing_locations(tree)
    return compile(tree, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _word(value: object) -> str:
    plain = value is None or isinstance(value, bool | int | str | bytes)
    return repr(value) if plain else type(value).__name__


def main() -> None:
    names: dict[str, Any] = {"body": lambda: "ran"}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        answers.write(json.dumps(execute(json.loads(line), names)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
