"""What the documents say of the code is true."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import incumbent

ROOT = Path(__file__).parent.parent.parent
REFERENCE = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_table_of_transitions_is_the_machines_own() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    made = subprocess.run(
        [
            sys.executable,
            "-c",
            (
                "import sys; sys.path.insert(0, 'scripts'); import lease_table as it;"
                "sys.stdout.write(it.page_with_table(it.PAGE.read_text()))"
            ),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert page == made, "run scripts/lease_table.py"


def test_every_function_that_the_tour_names_is_there() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    named = re.findall(r"`(?:incumbent\.)?([\w.]*\b[A-Z]\w*[a-z]\w*(?:\.\w+)?)`", page)
    dotted = [name for name in named if "." in name]
    assert len(dotted) > 20
    assert [name for name in dotted if not _is_defined(name)] == []


def _is_defined(dotted: str) -> bool:
    """Whether a file of the product has this class, and the function in it if one is named."""
    found = re.fullmatch(r"(?:([\w.]+)\.)?(_?[A-Z]\w+)(?:\.(\w+))?", dotted)
    assert found, dotted
    file, name, function = (found[1] or "").replace(".", "/"), found[2], found[3]
    return any(
        re.search(rf"^class {name}\b", text, re.MULTILINE)
        and (function is None or f"def {function}(" in text)
        for path in (ROOT / "src" / "incumbent").rglob("*.py")
        if path.as_posix().endswith(f"/{file}.py" if file else ".py")
        for text in (path.read_text(),)
    )


def test_the_tables_of_ttl_and_grace_are_computed_by_the_policy() -> None:
    page = ROOT / "docs" / "ttl-and-grace.md"
    made = runpy.run_path(str(ROOT / "scripts" / "ttl_tables.py"))
    assert page.read_text() == made["page_with_tables"](page.read_text()), "scripts/ttl_tables.py"


def test_every_public_name_is_in_the_reference() -> None:
    shown = set(re.findall(r"^::: (\S+)", REFERENCE, re.MULTILINE))
    assert [name for name in incumbent.__all__ if f"incumbent.{name}" not in shown] == []


def _calls_of(module: str) -> Iterator[tuple[str, Callable[..., object], str]]:
    """(name, what is called, its docstring) of what a module offers."""
    here = importlib.import_module(module)
    for name in here.__all__:
        offered = getattr(here, name)
        if not inspect.isclass(offered):
            if callable(offered):
                yield name, offered, inspect.getdoc(offered) or ""
            continue
        about = inspect.getdoc(offered) or ""
        by_hand = f"::: {module}.{name}\n    options:" not in REFERENCE
        if by_hand and not issubclass(offered, BaseException):
            yield name, offered, about + (inspect.getdoc(offered.__init__) or "")
        for method in vars(offered):
            call = getattr(offered, method)
            if not method.startswith("_") and callable(call):
                yield f"{name}.{method}", call, about + (inspect.getdoc(call) or "")


@pytest.mark.parametrize("module", ["incumbent", "incumbent.fencing", "incumbent.metrics"])
def test_every_parameter_is_explained(module: str) -> None:
    everywhere = (ROOT / "docs" / "reference" / "index.md").read_text()
    unexplained = [
        f"{name}({parameter})"
        for name, call, about in _calls_of(module)
        for parameter, what in inspect.signature(call).parameters.items()
        if what.kind not in (what.VAR_KEYWORD, what.VAR_POSITIONAL) and parameter != "self"
        if not re.search(rf"\b{parameter}\b", about) and f"`{parameter}`" not in everywhere
    ]
    assert unexplained == [], "in its docstring, or in docs/reference/index.md"


def test_every_logger_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "observing.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    loggers = set(re.findall(r"getLogger\(\"([\w.]+)\"\)", source))
    assert {"incumbent", "incumbent.jobs"} <= loggers
    assert {name for name in loggers if f"| `{name}` |" not in page} == set()


def test_a_package_index_gets_a_readme_without_relative_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interface = types.ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    hook = runpy.run_path(str(ROOT / "scripts" / "package_readme.py"))
    source = PROJECT["project"]["urls"]["Source"]
    made = hook["absolute"]((ROOT / "README.md").read_text(), source)
    links = re.findall(r"\]\(([^)]+)\)", made)
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    assert f"![The page]({source}/raw/HEAD/docs/page-light.png)" in made


def test_what_a_message_says_to_install_is_what_the_extra_brings() -> None:
    project = PROJECT["project"]
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    text = re.sub(r"\"\n\s+f?\"", "", source)
    hints = re.findall(r"pip install 'incumbent\[(\w+)\]' \(([^)]+)\)", text)
    assert len(hints) == 5 == source.count("pip install")
    assert [
        hint for hint in hints if hint[1] not in project["optional-dependencies"][hint[0]]
    ] == []


def test_every_file_that_a_page_links_to_exists() -> None:
    missing = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert missing == []


def test_every_test_that_a_page_names_exists() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests += "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    missing = [
        f"{page.name}: {name}"
        for page in PAGES
        for name in re.findall(r"`(test_\w+)`", page.read_text())
        if f"def {name}(" not in tests
    ]
    assert missing == []


def test_every_fragment_of_the_change_log_has_a_kind_and_a_sentence() -> None:
    kinds = {kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]}
    for path in sorted((ROOT / "changes").iterdir()):
        if path.name == "README.md":
            continue
        named = re.fullmatch(r"\+[a-z0-9-]+\.([a-z]+)\.md", path.name)
        kind = named[1] if named else None
        assert kind in kinds, f"changes/{path.name}: it is +NAME.KIND.md, with one of {kinds}"
        assert path.read_text().rstrip().endswith("."), f"changes/{path.name}: a sentence"


RECORDS = [
    page
    for page in sorted((ROOT / "docs" / "design").glob("*.md"))
    if page.name not in ("index.md", "sizes.md")
]
PARTS = {
    *("The question", "The decision", "What else was considered", "What it costs"),
    "Where it stands",
}


@pytest.mark.parametrize("page", RECORDS, ids=lambda page: page.stem)
def test_a_design_record_has_all_its_parts_and_is_listed(page: Path) -> None:
    assert set(re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)) >= PARTS
    assert f"({page.name})" in (page.parent / "index.md").read_text()


@pytest.mark.parametrize("page", RECORDS, ids=lambda page: page.stem)
def test_the_files_that_a_design_record_names_exist(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`((?:src|tests|docs|scripts|benchmarks)/[^`\s]+)`", text)
    assert len(named) >= 4
    assert [name for name in named if not (ROOT / name).exists()] == []
