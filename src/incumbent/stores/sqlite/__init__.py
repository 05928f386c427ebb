"""`sqlite:` leases among the processes, threads and loops of one host, in one file.

`engine` reads the URL; `host` knows the clock, the boot and the file system. `schema` (tables and
statements) and `rows` (what a row means) are pure. `connection` opens the file, `file` runs
transactions and survives forks, `line` keeps the claims that wait, `sharers` those that hold a
lease together. `core` has the operations, each tried once; `retry` tries them again, blocking or in
an event loop; `doctor` looks at the file.

Importing this package loads no driver; `sqlite3` comes with the first operation.
"""

from incumbent.stores.sqlite.engine import SqliteEngine, open_sqlite

__all__ = ["SqliteEngine", "open_sqlite"]
