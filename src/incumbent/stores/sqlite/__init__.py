"""`sqlite:`, leases among the processes, threads and loops of one host, in one file.

`engine` reads the URL, and checks the file for `doctor`; `host` knows the clock, the boot and the
file system. `schema` (tables and statements) is pure; `records` reads and writes rows. `connection`
opens the file, `file` runs transactions and survives forks. `core` has the operations, for threads
and for event loops.

Importing this package loads no driver; `sqlite3` comes with the first operation.
"""

from incumbent.stores.sqlite.engine import SqliteEngine, open_sqlite

__all__ = ["SqliteEngine", "open_sqlite"]
