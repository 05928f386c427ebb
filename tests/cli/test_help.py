"""Help, completion and the manual page come from one table, and say what it says."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from incumbent.cli.help import manual_page, script_for
from incumbent.cli.main import main
from incumbent.cli.parser import parse
from incumbent.cli.table import COMMANDS, EXAMPLES, GLOBAL, GROUPS, OPTIONS, overview
from incumbent.errors import ConfigError

EVERY = pytest.mark.parametrize("name", COMMANDS)


def test_every_command_is_in_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)


def test_no_command_shows_the_help_and_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 64
    assert capsys.readouterr().err == overview()


@pytest.mark.parametrize("line", ["help", "--help", "-h"])
def test_help_lists_every_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([line])
    assert (ended.value.code, capsys.readouterr().out) == (0, overview())


@EVERY
def test_each_command_shows_two_examples_that_can_be_typed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["help", name])
    shown = capsys.readouterr().out
    first, second = EXAMPLES[name]
    assert f"examples:\n  {first}\n  {second}\n" in shown
    for line in (first, second):
        program, *words = shlex.split(
            line.partition(" && ")[0].partition(" > ")[0].partition(" | ")[0]
        )
        assert (program, parse(words, {}).command) == ("incumbent", name)


@pytest.mark.parametrize("line", [["help", "statsu"], ["statsu"]])
def test_a_misspelt_command_names_the_one_that_was_meant(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 64
    assert "'statsu'; did you mean status?" in capsys.readouterr().err


def test_every_line_of_the_overview_fits_a_terminal_of_100_columns() -> None:
    assert max(map(len, overview().splitlines())) <= 100


# -- completion ------------------------------------------------------------------------------------


def completed(line: str) -> set[str]:
    """What bash itself offers for the last word of a line."""
    words = line.split(" ")
    script = (
        f"{script_for('bash')}\n"
        f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}\n"
        '_incumbent; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-euc", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split("\n")) - {""}


def test_bash_completes_commands() -> None:
    assert completed("incumbent re") == {"resign"}
    assert completed("incumbent ") >= set(COMMANDS)


@EVERY
def test_bash_completes_the_options_of_the_command(name: str) -> None:
    flags = {flag for option in (*COMMANDS[name].options, *GLOBAL) for flag in option.flags}
    others = {flag for option in OPTIONS for flag in option.flags} - flags
    offered = completed(f"incumbent {name} -")
    assert flags <= offered
    assert not others & offered


def test_bash_completes_choices_and_the_words_of_a_command() -> None:
    assert completed("incumbent run n --isolate p") == {"pidns", "pgroup"}
    assert completed("incumbent help cr") == {"cron"}
    assert "true" in completed("incumbent run n -- tru")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_name_every_command_and_option(shell: str) -> None:
    script = script_for(shell)
    for name, command in COMMANDS.items():
        assert name in script
        for option in command.options:
            assert option.flags[-1].removeprefix("--") in script


def test_zsh_leaves_what_comes_after_the_dashes_to_the_command() -> None:
    before, after = script_for("zsh").split("_normal")
    assert "dashes=${words[(i)--]}" in before
    assert "_arguments" not in before
    assert "_arguments" in after


def test_another_shell_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean bash"):
        script_for("bsh")


# -- the manual page -------------------------------------------------------------------------------


def test_the_manual_page_has_every_option_and_nothing_that_roff_takes_for_its_own() -> None:
    page = manual_page()
    for option in OPTIONS:
        assert option.flags[-1].replace("-", "\\-") in page
    requests = {line.split(" ")[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".SS", ".TP", ".B", ".PP", ".nf", ".fi"}
