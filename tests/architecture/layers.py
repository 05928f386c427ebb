"""The layers of the package as data, lowest first. Place new modules here.

A module may import its own layer and the ones below, at run time and for types
alike. A name stands for the module and everything under it; the longest match
wins, so `stores.base` can lie lower than `stores.redis`.
"""

from __future__ import annotations

from dataclasses import dataclass

# What would make a decision depend on when, where or in which thread it is taken.
WORLD = frozenset(
    {
        *("time", "random", "secrets", "os", "signal", "sched"),
        *("threading", "asyncio", "concurrent", "multiprocessing", "queue", "subprocess"),
        *("socket", "ssl", "select", "selectors", "sqlite3", "redis", "hiredis"),
        *("psycopg", "pymysql", "sqlalchemy", "yaml"),
    }
)


@dataclass(frozen=True)
class Layer:
    name: str
    modules: tuple[str, ...]
    banned: frozenset[str] = frozenset()


LAYERS = (
    Layer("values", ("printable", "errors", "durations", "model", "meters"), WORLD),
    Layer(
        "decisions",
        (
            "lease",
            "policy",
            "election",
            "job",
            "quorum",
            "supervise.plan",
            "cron.zones",
            "cron.fields",
            "cron.schedule",
            "cron.spec",
            "cron.agenda",
        ),
        WORLD,
    ),
    Layer(
        "store contract",
        (
            "stores.base",
            "stores.findings",
            "stores.names",
            "stores.notices",
        ),
        WORLD,
    ),
    Layer("rules", ("rules",), WORLD),
    Layer(
        "job files",
        (*("cron.spec", "cron.crontab", "cron.jobfile"),),
        WORLD,
    ),
    Layer(
        "protocols",
        (
            *("protocol.acquire", "protocol.held", "protocol.observe"),
            "protocol.port",
            *("protocol.release", "protocol.renew", "protocol.words"),
            "protocol.roster",
            *("cron.agenda", "cron.folds", "cron.ledger", "cron.once", "cron.slots"),
        ),
        WORLD,
    ),
    Layer("plans", ("stores.plan",), WORLD),
    Layer("registers", ("stores.registers", "stores.deciding"), WORLD),
    Layer("system", ("clock", "interrupts", "unpatched", "protocol.chance", "stores.loops")),
    Layer("sockets", ("net",)),
    Layer("fencing", ("fencing",)),
    Layer("stores", ("stores",)),
    Layer("drivers", ("protocol",)),
    Layer("settings", ("options",)),
    Layer("leases", ("callers", "leases", "running")),
    Layer(
        "facades",
        (
            *("locks", "several", "candidacy", "elections"),
            *("groups", "shards", "clients", "inside"),
        ),
    ),
    Layer("decorators", ("decorators", "compat", "tooz_driver")),
    Layer("health", ("metrics", "otel", "serve")),
    Layer("supervision", ("supervise",)),
    Layer("jobs", ("cron",)),
    Layer("page", ("page",)),
    Layer("outermost", ("testing", "cli", "demo", "__main__")),
)

# `import incumbent` brings the facades, so importing the package itself is as high as they are.
ROOT = "decorators"

# A driver is imported by its own store and by nobody else; the demo plays a foreign store.
DRIVERS = {
    "redis": ("compat",),
    "hiredis": ("stores.redis", "stores.quorum"),
    "sqlite3": ("stores.sqlite", "demo", "fencing.http"),
    "psycopg": ("stores.postgresql",),
    "pymysql": ("stores.mysql",),
    "yaml": ("stores.kubernetes",),
    "sqlalchemy": ("stores.postgresql", "fencing.sql"),
    "tooz": ("tooz_driver",),
}

# Connections to stores are made, and waited for, in `net` only; libpq opens PostgreSQL's.
SOCKETS = frozenset({"socket", "select", "selectors", "ssl"})
TRANSPORTS = frozenset(
    {
        *("create_connection", "create_unix_connection", "open_connection"),
        *("open_unix_connection", "add_reader", "add_writer", "sock_connect", "sock_recv"),
    }
)
# These make a TLS context of a user's settings, and open nothing.
SOCKETS_OUTSIDE_NET = {"stores.etcd.site": {"ssl"}}

# The vocabulary has one word for each thing; these would be a second one.
AVOIDED = frozenset({"unlock", "obtain", "refresh", "watchdog", "resource", "owner"})
# What a guard writes to is the resource, in the field's words; elsewhere it would mean the name.
# The interfaces of others have their words.
SPOKEN = {"fencing": {"resource"}, "compat": {"owner"}, "tooz_driver": {"owner"}}
# Where users look, a token is a fencing token; the store contract says `token` for short.
NO_BARE_TOKEN = ("locks", "errors")

# Documented by the standard library, in spite of the underscore.
PUBLIC_ALL_THE_SAME = frozenset({"_asdict", "_exit", "_fields", "_make", "_replace"})
# `x._y` of another package: a library's, or a test bench that steps a keeper's thread itself.
PEEKING = {
    "testing.plugin": {
        *("_by_object", "_by_url", "_entries", "_held", "_keepers", "_next", "_state"),
    },
}

# Around what talks to a store, `except` of these may meet what a signal handler raised instead.
WIDE = frozenset({"OSError", "TimeoutError", "ConnectionError", "RuntimeError", "Exception"})
# These tell it apart (incumbent.interrupts), themselves or where they pass the error to.
TELL_APART = frozenset(
    {
        *("raise_handlers", "is_handlers", "ProviderFailed"),
        *("_outlast", "_finish_slow", "_fall_back"),
    }
)
# Where no handler runs, or what it raises reaches its caller all the same.
NO_HANDLER = {
    "net.aiowire": {"work": "a thread of its own"},
    "protocol.keeper": {"_settle_guarded": "the keeper's thread", "remembered": "reads a set"},
    "protocol.link": {"async_port": "asks for the loop", "_find_port": "asks for the loop"},
    "stores.quorum.connecting": {"_connect_apart": "raised by who waits for the connection"},
    "stores.sqlite.engine": {"default_path": "asks for the home folder"},
    "stores.sqlite.file": {"after_fork": "releases a lock"},
    "stores.turns": {"first": "reads a dictionary"},
}

LONGEST_FILE = 600
LONGEST_FUNCTION = 50


def within(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def height_of(module: str) -> int:
    """The height of a module's layer; `len(LAYERS)` if it has none."""
    if not module:
        return [layer.name for layer in LAYERS].index(ROOT)
    matches = [
        (len(name), height)
        for height, layer in enumerate(LAYERS)
        for name in layer.modules
        if within(module, name)
    ]
    return max(matches)[1] if matches else len(LAYERS)
