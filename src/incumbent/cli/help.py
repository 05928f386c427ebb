"""What `incumbent help` and `--help` show: the commands in groups, and examples of each."""

from __future__ import annotations

from typing import Final

from incumbent.cli.table import COMMANDS

GROUPS: Final = {
    "Run things": ("run", "lead", "work", "cron"),
    "Look": ("status", "why", "history", "jobs", "wait", "serve"),
    "Act": ("resign", "break", "pause", "unpause", "trigger"),
    "Set up": ("doctor", "demo", "help", "completion", "man"),
}

EXAMPLES: Final = {
    "run": (
        "incumbent run nightly -- ./sync.sh",
        "incumbent run report --wait=10m --once-per 1d -- make report",
    ),
    "lead": (
        "incumbent lead telnet -- ./keep-session.sh",
        "incumbent lead shard/7 --ttl 10s --listen 127.0.0.1:8080 -- ./own-shard 7",
    ),
    "work": (
        "incumbent work importer --workers 4 -- ./import.sh",
        "incumbent work gpu --workers 8 --holders 2 -- ./train.sh",
    ),
    "cron": ("incumbent cron --check jobs.toml", "incumbent cron jobs.toml"),
    "status": ("incumbent status", "incumbent status --held --watch"),
    "wait": ("incumbent wait nightly", "incumbent wait nightly --timeout 5m && ./after.sh"),
    "break": (
        'incumbent break nightly --reason "stuck since 5"',
        "incumbent break nightly --force",
    ),
    "resign": ("incumbent resign telnet", "incumbent resign telnet --to host-b:4711"),
    "pause": ('incumbent pause nightly --reason "migration"', "incumbent pause --all"),
    "unpause": ("incumbent unpause nightly", "incumbent unpause --all"),
    "why": ("incumbent why nightly", "incumbent why nightly --at 05:30"),
    "history": ("incumbent history nightly", "incumbent history nightly --failed -n 20"),
    "jobs": ("incumbent jobs", "incumbent jobs --watch"),
    "trigger": (
        "incumbent trigger nightly",
        'incumbent trigger nightly --reason "data came late"',
    ),
    "serve": (
        "incumbent serve",
        "incumbent serve --listen 0.0.0.0:8080 --token-file token",
    ),
    "doctor": ("incumbent doctor", "incumbent doctor -s redis://localhost --ttl 10s"),
    "demo": ("incumbent demo", "incumbent demo --quiet"),
    "help": ("incumbent help", "incumbent help run"),
    "completion": (
        "incumbent completion bash > ~/.local/share/bash-completion/completions/incumbent",
        "incumbent completion fish > ~/.config/fish/completions/incumbent.fish",
    ),
    "man": ("incumbent man | man -l -", "incumbent man > /usr/local/share/man/man1/incumbent.1"),
}

NOTES: Final = """\
The settings of a deployment are also variables: --ttl is INCUMBENT_TTL. Flags win. The store also
comes from INCUMBENT_STORE_FILE, its password from INCUMBENT_STORE_PASSWORD_FILE."""

EXIT_CODES: Final = """\
Exit codes: CMD's own; 64 usage; 69 the store could not be proved, nothing ran; 75 another holds
the lease; 123 lease lost, CMD stopped; 124 --at-most-for; 125 own fault; 126 CMD cannot be
executed; 127 CMD is not found.
lead and work exit 0 on TERM, and go on after every other end of a term."""


def overview() -> str:
    """All commands, in groups."""
    width = max(map(len, COMMANDS))
    lines = ["usage: incumbent COMMAND [options]", "", "Of many instances one runs, or none does."]
    for group, names in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {name.ljust(width)}  {COMMANDS[name].help}" for name in names]
    lines += ["", "The options of one: incumbent help COMMAND", "", NOTES, EXIT_CODES, ""]
    return "\n".join(lines)


def examples(name: str) -> str:
    """Two lines that can be typed."""
    return "examples:\n" + "".join(f"  {line}\n" for line in EXAMPLES[name])
