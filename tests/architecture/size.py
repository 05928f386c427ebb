"""How much there is to read, against limits: `make size`.

    python -m tests.architecture.size [--list]

Exit code 1 if a figure is beyond its limit. `LIMITS` is the only place that has them. A limit is
what held when it was set: lower it when the figure allows that, down to the aim. Only the mend of a
defect may raise it, by its own lines.
Reads the files as text and by `ast`, and imports nothing of the product.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from io import StringIO
from pathlib import Path

from tests.architecture import source
from tests.architecture.layers import height_of

__all__ = ["LIMITS", "Limit", "Sizes", "main"]

CODE = {".py": "#", ".lua": "--", ".sql": "--"}
"""What is counted, by the sign that begins a comment line."""
OF_THEIR_OWN = frozenset({"mysql", "kubernetes"})
"""Engines whose lines have a budget of their own."""
SHORT = 6
"""Lines from which on a function may stand for itself, though it is called once."""


@dataclass(frozen=True)
class Limit:
    """What holds, and what is aimed at."""

    limit: float
    aim: float
    at_least: bool = False

    def allows(self, now: float) -> bool:
        return now >= self.limit if self.at_least else now <= self.limit

    def can_move(self, now: float) -> bool:
        """Whether the figure would allow a limit that is nearer to the aim."""
        reached = min(now, self.aim) if self.at_least else max(now, self.aim)
        return reached > self.limit if self.at_least else reached < self.limit


LIMITS = {
    "lines that count": Limit(limit=63_320, aim=49_000),
    "comment lines of 100": Limit(limit=4.0, aim=4.0, at_least=True),
    "files": Limit(limit=285, aim=200),
    "class names that several bear": Limit(limit=5, aim=5),
    "short functions called once": Limit(limit=60, aim=60),
    "lines of the median function": Limit(limit=6, aim=6),
    "folders in several layers": Limit(limit=0, aim=0),
    "floors of stores/redis": Limit(limit=7, aim=7),
}


@dataclass
class Sizes:
    """The figures of the files below a folder, and where the countable ones stand."""

    files: Mapping[Path, str]
    root: Path
    _classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _functions: list[int] = field(default_factory=list)
    _once: list[tuple[str, str]] = field(default_factory=list)
    _defined: Counter[str] = field(default_factory=Counter)

    @classmethod
    @cache
    def of(cls, root: Path) -> Sizes:
        paths = sorted(path for path in root.rglob("*") if path.suffix in CODE)
        return cls({path: path.read_text(encoding="utf-8") for path in paths}, root)

    def __post_init__(self) -> None:
        for path, text in self.files.items():
            if path.suffix == ".py":
                self._look_at(path, source.nodes_of(text))

    def _look_at(self, path: Path, nodes: list[ast.AST]) -> None:
        named, called = Counter[str](), Counter[str | None]()
        private: dict[str, source.FunctionNode] = {}
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                self._classes[node.name.lstrip("_")].append(self._place(path, node))
            elif isinstance(node, source.FunctionNode):
                self._functions.append(_length(node))
                self._defined[node.name] += 1
                is_private = node.name.startswith("_") and not node.name.startswith("__")
                if is_private and not node.decorator_list:
                    private[node.name] = node
            elif isinstance(node, ast.Call):
                called[getattr(node.func, "attr", getattr(node.func, "id", None))] += 1
            elif isinstance(node, ast.Name):
                named[node.id] += 1
            elif isinstance(node, ast.Attribute):
                named[node.attr] += 1
        self._once += [
            (name, self._place(path, node))
            for name, node in private.items()
            if named[name] == called[name] == 1 and _length(node) < SHORT
        ]

    def _place(self, path: Path, node: ast.ClassDef | source.FunctionNode) -> str:
        return f"{path.relative_to(self.root).as_posix()}:{node.lineno}"

    @cached_property
    def lines(self) -> Counter[Path]:
        """Of each file, without comment lines."""
        return Counter({path: _lines(text, CODE[path.suffix]) for path, text in self.files.items()})

    @property
    def all_lines(self) -> int:
        return sum(text.count("\n") for text in self.files.values())

    @property
    def counted(self) -> list[int]:
        """Of each file, without comment lines; engines with a budget of their own left out."""
        return [
            count
            for path, count in self.lines.items()
            if not OF_THEIR_OWN & {*path.relative_to(self.root).parts}
        ]

    @property
    def homonyms(self) -> dict[str, list[str]]:
        """The classes of each name that several bear, an underscore aside."""
        return {name: where for name, where in sorted(self._classes.items()) if len(where) > 1}

    @property
    def called_once(self) -> list[str]:
        """The private functions that could stand in the place of their only call.

        Those that are passed on, decorated, or defined by several classes (hooks) could not.
        """
        return sorted(f"{at} {name}" for name, at in self._once if self._defined[name] == 1)

    @property
    def functions(self) -> int:
        return len(self._functions)

    @property
    def classes(self) -> int:
        return sum(map(len, self._classes.values()))

    @property
    def folders(self) -> Counter[str]:
        """Lines of each folder, comments included; the engines apart, the top as `(top)`."""
        found: Counter[str] = Counter()
        for path, text in self.files.items():
            parts = path.relative_to(self.root).parts[:-1]
            found["/".join(parts[: 2 if parts[:1] == ("stores",) else 1]) or "(top)"] += text.count(
                "\n"
            )
        return found

    def figures(self) -> dict[str, float]:
        """What is limited, by its name in `LIMITS`."""
        comments = self.all_lines - sum(self.lines.values())
        return {
            "lines that count": sum(self.counted),
            "comment lines of 100": round(100 * comments / self.all_lines, 1),
            "files": len(self.counted),
            "class names that several bear": len(self.homonyms),
            "short functions called once": len(self.called_once),
            "lines of the median function": statistics.median_low(self._functions),
            "folders in several layers": len(folders_in_layers()),
            "floors of stores/redis": floors("stores.redis"),
        }


def _length(node: source.FunctionNode) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _lines(text: str, comment: str) -> int:
    return sum(not line.lstrip().startswith(comment) for line in StringIO(text))


def folders_in_layers() -> list[str]:
    """The folders whose modules lie at several heights in tests/architecture/layers.py."""
    heights: dict[str, set[int]] = defaultdict(set)
    for module in source.modules():
        if "." in module and not source.is_package(module):
            heights[module.partition(".")[0]].add(height_of(module))
    return sorted(folder for folder, found in heights.items() if len(found) > 1)


def floors(package: str) -> int:
    """The modules of a package that the longest way of its imports passes through."""
    inside = [name for name in source.modules() if name.startswith(f"{package}.")]
    imported = {
        name: {*source.own_imports(name, at_run_time=True)} & {*inside} - {name} for name in inside
    }
    height: dict[str, int] = {}

    def of(name: str) -> int:
        if name not in height:
            height[name] = 1 + max(map(of, imported[name]), default=0)
        return height[name]

    return max(map(of, inside))


def table(figures: Mapping[str, float]) -> Iterable[str]:
    """A line a figure, with what is to be done about it."""
    yield f"{'':32}{'now':>8}{'limit':>8}{'aim':>8}"
    for name, now in figures.items():
        it = LIMITS[name]
        note = "  BEYOND THE LIMIT" if not it.allows(now) else ""
        note = note or ("  the limit can be lowered" if it.can_move(now) else "")
        yield f"{name:32}{now:>8}{it.limit:>8}{it.aim:>8}{note}"


def main(args: list[str]) -> int:
    """Exit code 1 if a figure is beyond its limit."""
    sizes = Sizes.of(source.PACKAGE)
    figures = sizes.figures()
    said = [*table(figures), ""]
    said += [f"{sizes.all_lines} lines, {sizes.functions} functions, {sizes.classes} classes"]
    if "--list" in args:
        said += [f"  {folder:32}{lines:>8}" for folder, lines in sizes.folders.most_common()]
        said += ["", "class names that several bear:"]
        said += [f"  {name}: {', '.join(where)}" for name, where in sizes.homonyms.items()]
        said += ["", "short functions called once:", *(f"  {it}" for it in sizes.called_once)]
        said += ["", f"folders in several layers: {', '.join(folders_in_layers())}"]
    sys.stdout.write("\n".join([*said, ""]))
    return int(not all(LIMITS[name].allows(now) for name, now in figures.items()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
