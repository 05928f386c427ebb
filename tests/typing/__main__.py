"""`python -m tests.typing`: both checkers, and what they say otherwise than the comments do."""

import sys

from tests.typing.checkers import mypy, programs, pyright, wanted


def main() -> int:
    files, bad = programs(), 0
    for checker, found in (("mypy", mypy(files)), ("pyright", pyright(files))):
        expected = wanted(files, pyright=checker == "pyright")
        for file, line, code in sorted(found ^ expected):
            what = "unexpected" if (file, line, code) in found else "missing"
            print(f"{checker}: tests/typing/{file}:{line}: {what} {code}")
            bad += 1
    print(f"{len(files)} programs for type checkers, {bad} surprises")
    return 1 if bad else 0


sys.exit(main())
