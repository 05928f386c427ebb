"""Commands and options as data, for the parser, the environment, the messages and the help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PREFIX: Final = "INCUMBENT_"


@dataclass(frozen=True, slots=True)
class Option:
    """An option. Without a `metavar` it is a switch.

    `setting`: the option may come from the environment, because a deployment sets it once for all
    its commands. An option about one NAME, or one command line, may not: in the environment of a
    container it would change the meaning of every other command there.
    """

    names: str
    """The flags in one text, the long one last."""
    help: str
    metavar: str = ""
    setting: bool = False
    choices: tuple[str, ...] = ()
    """The only values that are allowed; empty if any value is."""

    @property
    def flags(self) -> list[str]:
        """The flags, the long one last."""
        return self.names.split()

    @property
    def dest(self) -> str:
        """The option's name in the program, made from its long flag."""
        return self.flags[-1].removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable of the option, if it is a setting."""
        return PREFIX + self.dest.upper()


def _setting(names: str, help_: str, metavar: str = "", choices: tuple[str, ...] = ()) -> Option:
    return Option(names, help_, metavar, setting=True, choices=choices)


@dataclass(frozen=True, slots=True)
class CliCommand:
    """A command; `argument`: what it takes, as "[NAME]", or ""; `module`: has its `command()`."""

    module: str
    argument: str
    help: str
    options: tuple[Option, ...] = ()
    with_cmd: bool = False
    """Whether `-- CMD...` follows."""

    @property
    def runs_work(self) -> bool:
        """Whether the command runs work under leases."""
        return self.with_cmd or self.module == "cli.cron"


_FORMATS = ("text", "json")
GLOBAL: Final = (
    _setting("-s --store", "where leases are: sqlite: (default), redis://host", "URL"),
    _setting("-N --namespace", 'the fleet whose names these are ("default")', "NS"),
    _setting("--json", "answer in JSON, for programs"),
    _setting("-q --quiet", "no hints and no warnings"),
    _setting("-v --verbose", "say what happens"),
    _setting("--log-format", "text (default), or json: a line of JSON each", "HOW", _FORMATS),
)

_TTL = _setting("--ttl", "after a crash, how long until another takes over (15s)", "DUR")
_LOCK_DELAY = _setting(
    "--lock-delay", "after a crash, keep NAME closed for this much longer (0)", "DUR"
)
_GRACE = _setting("--grace", "time between TERM and KILL (min(5s, ttl/3))", "DUR")
_REASON = Option("--reason", "why; `status` and `why` show it", "TEXT")
_ISOLATIONS = ("auto", "pidns", "container", "pgroup")
_SUPERVISED = (
    _TTL,
    _GRACE,
    _setting("--holder", "name of this instance in status and logs (host:pid)", "ID"),
    _setting("--share-store", "let CMD use the store; its URL is withheld otherwise"),
    _setting("--isolate", "auto (default), pidns, container or pgroup", "HOW", _ISOLATIONS),
)
_PAGES = (
    _setting(
        "--token-file", "the token of the pages; without it, other hosts get only probes", "F"
    ),
    _setting("--user-header", "the header in which a proxy names who acts; else none is read", "H"),
)
_LISTEN = (
    _setting("--listen", "serve the page, /healthz, /readyz, /leader, /metrics", "HOST:PORT"),
    *_PAGES,
)
_SERVE = (_setting("--listen", "serve the page, /api/v1, /healthz, /readyz", "HOST:PORT"), *_PAGES)
_NOTIFY = _setting(
    "--notify", "POST a signed message there about what ends badly; @F: the URL is in F", "URL"
)
_PING = Option("--ping", "a dead man's switch to ping; @F: the URL is in F", "URL")
_PING_EVERY = Option("--ping-every", "how often a leader pings (60s)", "DUR")
_BOUNDS = (
    Option("--at-most-for", "stop CMD after this time (run: exit 124)", "DUR"),
    Option("--at-least-for", "keep the name closed until this time after the start", "DUR"),
)
_RUN = (
    Option("--wait", "wait for the lease, for at most DUR if given; else exit 75", "[=DUR]"),
    Option("--fair", "with --wait: in the order of arrival"),
    *_SUPERVISED,
    _LOCK_DELAY,
    Option("--once-per", "at most one start in this time, by the store's clock", "DUR"),
    Option("--slot", "at most one start with this ID, such as a scheduled instant", "ID"),
    Option("--permits", "let N runs hold NAME at once, in the whole fleet", "N"),
    *_BOUNDS,
    _setting("-E --busy-exit-code", "exit code when another holds the lease (75)", "N"),
    Option("--result-file", "write how it ended to this file, as JSON", "F"),
    _NOTIFY,
    _PING,
    *_LISTEN,
)
_CAMPAIGN = (
    Option(
        "--restart",
        "campaign again after a term: always (default), on-failure, never",
        "WHEN",
        choices=("always", "on-failure", "never"),
    ),
    Option("--fair", "candidates lead in the order in which they came"),
    _setting("--priority", "the candidate with the highest number takes over the lead (none)", "N"),
    _setting("--step-down-after", "how long a term lasts before that at least (2 ttl)", "DUR"),
    *_SUPERVISED,
    _LOCK_DELAY,
    *_BOUNDS,
)
_LEAD = (*_CAMPAIGN, _NOTIFY, _PING, _PING_EVERY, *_LISTEN)
_WORK = (
    Option("--workers", "processes of this service", "N"),
    Option("--permits", "how many of them may hold at a time, in the whole fleet (1)", "M"),
    *_LEAD,
)
_CRON = (
    Option("--check", "show every problem of FILE, or the next runs; run nothing"),
    *_SUPERVISED,
    _setting("--drain", "after TERM, how long runs may go on before they are stopped (25s)", "DUR"),
    _setting("--max-runs", "at most N runs at a time here; further slots wait (100)", "N"),
    _NOTIFY,
    *_LISTEN,
)
_SINCE = Option("--since", "only what began after: 2h, 2026-11-21T05:30Z", "WHEN")
_LAST = Option("-n --last", "only the last N", "N")
_HISTORY = (_SINCE, Option("--failed", "only runs that did not end well"), _LAST)
_RUNS = Option("-n --last", "of the last N runs (1)", "N")
_FOLLOW = Option("-f --follow", "go on with what it prints, and with the next runs, until ^C")
_ALL = Option("--all", "every job of the namespace")
_TO = Option("--to", "the candidate that leads next", "HOLDER")
_PREFIX = Option("--prefix", "only names that begin with TEXT", "TEXT")
_WATCH = Option("--watch", "show it again every second, until ^C")
_STATUS = (
    _WATCH,
    Option("--held", "only names that are held"),
    _PREFIX,
    Option("--names", "only the names of leases and jobs, one a line"),
    Option("--all", "free names, jobs and internal names too"),
)
_TIMEOUT = Option("--timeout", "give up with exit 75 after this time", "DUR")
_FIX = Option("--fix", "first make the schema in the store")
_TEST_NOTIFY = Option("--test-notify", "send a test message to the receiver of --notify")
_AT = Option("--at", "about the slot of this instant: 05:30, 2026-11-21T05:30Z", "WHEN")
_FORCE = Option("--force", "remove the record at once: the holder may go on for its ttl")

COMMANDS: Final = {
    "run": CliCommand(
        "cli.run", "NAME", "take the lease, run CMD once, give it back", _RUN, with_cmd=True
    ),
    "lead": CliCommand(
        "cli.lead", "NAME", "campaign for ever; CMD runs during each term", _LEAD, with_cmd=True
    ),
    "work": CliCommand(
        "cli.lead",
        "NAME",
        "start N workers here; at most M work at a time in the whole fleet",
        _WORK,
        with_cmd=True,
    ),
    "cron": CliCommand(
        "cli.cron", "FILE", "jobs by the clock, from a crontab or a job file (TOML)", _CRON
    ),
    "status": CliCommand("cli.look", "[NAME]", "show who holds what", _STATUS),
    "wait": CliCommand("cli.look", "NAME", "wait until NAME is free", (_TIMEOUT,)),
    "break": CliCommand("cli.steering", "NAME", "ask the holder to stop", (_FORCE, _REASON)),
    "resign": CliCommand("cli.steering", "NAME", "ask the holder to hand over", (_TO, _REASON)),
    "pause": CliCommand(
        "cli.steering", "[NAME]", "stop the holder, and let nobody take NAME", (_REASON, _ALL)
    ),
    "unpause": CliCommand("cli.steering", "[NAME]", "let instances take NAME again", (_ALL,)),
    "why": CliCommand(
        "cli.why", "NAME", "why NAME is held, or is not; why a job did not run", (_AT,)
    ),
    "history": CliCommand(
        "cli.jobs", "NAME", "who held NAME when; what became of a job's slots", _HISTORY
    ),
    "logs": CliCommand(
        "cli.logs", "NAME", "the output of a job's last run, as far as it is kept", (_RUNS, _FOLLOW)
    ),
    "jobs": CliCommand(
        "cli.jobs",
        "",
        "the jobs of the fleet: when next, how last, who",
        (Option("--failed", "only jobs whose last run did not end well"), _PREFIX, _WATCH),
    ),
    "trigger": CliCommand("cli.jobs", "NAME", "run a job once now, somewhere", (_REASON, _TIMEOUT)),
    "serve": CliCommand(
        "cli.serve", "", "a page about all leases and jobs, to leave open in a browser", _SERVE
    ),
    "doctor": CliCommand(
        "cli.doctor",
        "",
        "check the store and the settings, and say what to fix",
        (_TTL, _GRACE, _FIX, _NOTIFY, _TEST_NOTIFY),
    ),
    "demo": CliCommand(
        "demo.story", "", "watch leaders being killed, frozen and cut off (20 s, no server)"
    ),
    "help": CliCommand("cli.help", "[COMMAND]", "show the commands, or the options of one"),
    "completion": CliCommand(
        "cli.help", "SHELL", "print the completion script of bash, zsh or fish"
    ),
    "man": CliCommand("cli.help", "", "print the manual page, for man(1)"),
}

OPTIONS = (*GLOBAL, *(option for command in COMMANDS.values() for option in command.options))
SETTINGS: Final = frozenset(option.dest for option in OPTIONS if option.setting)
"""Options that may come from the environment: those that are defined by `_setting` above."""

_OTHER: Final = (
    *("STORE_FILE", "STORE_PASSWORD_FILE", "SERVICE_ACCOUNT"),
    *("NOTIFY_SECRET", "NOTIFY_SECRET_FILE"),
)
# Variables that an incumbent gives to its child, which may be an incumbent too.
_OF_A_PARENT: Final = (
    *(f"LEASE_{what}" for what in ("NAME", "HOLDER", "TERM", "SLOT", "SOCKET", "MARK")),
    *(f"RUN_{what}" for what in ("JOB", "SLOT", "STATE", "CODE", "WHY")),
)

VARIABLES: Final = frozenset(
    PREFIX + name for name in (*map(str.upper, SETTINGS), *_OTHER, *_OF_A_PARENT)
)
FLAGS: Final = {
    option.variable: option.flags[-1] for option in OPTIONS if option.dest not in SETTINGS
}
"""The flag of each option outside SETTINGS, by the variable that the option would have."""

# -- help ------------------------------------------------------------------------------------------

GROUPS: Final = {
    "Run things": ("run", "lead", "work", "cron"),
    "Look": ("status", "why", "history", "logs", "jobs", "wait", "serve"),
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
        "incumbent work gpu --workers 8 --permits 2 -- ./train.sh",
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
    "logs": ("incumbent logs nightly", "incumbent logs nightly -f"),
    "jobs": ("incumbent jobs", "incumbent jobs --watch"),
    "trigger": ("incumbent trigger nightly", 'incumbent trigger nightly --reason "data came late"'),
    "serve": ("incumbent serve", "incumbent serve --listen 0.0.0.0:8080 --token-file token"),
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
Exit codes: CMD's own; 64 usage; 69 the store gave no usable answer, nothing ran; 75 another holds
the lease; 123 lease lost, CMD stopped; 124 --at-most-for; 125 own fault; 126 CMD cannot be
executed; 127 CMD is not found.
lead and work exit 0 on TERM, and campaign again after any other end of a term."""


def overview() -> str:
    """The help about all commands, in groups."""
    width = max(map(len, COMMANDS))
    lines = ["usage: incumbent COMMAND [options]", "", "Of many instances one runs, or none does."]
    for group, names in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {name.ljust(width)}  {COMMANDS[name].help}" for name in names]
    lines += ["", "The options of a command: incumbent help COMMAND", "", NOTES, EXIT_CODES, ""]
    return "\n".join(lines)


def examples(name: str) -> str:
    """The examples of a command, as its help shows them."""
    return "examples:\n" + "".join(f"  {line}\n" for line in EXAMPLES[name])


def usage(name: str) -> str:
    """The synopsis of a command."""
    command = COMMANDS[name]
    words = ("incumbent", name, command.argument, "[options]", "-- CMD..." * command.with_cmd)
    return " ".join(filter(None, words))
