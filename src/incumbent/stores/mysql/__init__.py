"""Leases in a database of MariaDB or MySQL: one row a name, and the server's clock.

`statements` has the tables and the theory of operation, `exchange` answers the requests of the
register kit with them, `server` knows incarnations. Making the first engine imports PyMySQL.
"""

from incumbent.stores.mysql.public import open_mysql
from incumbent.stores.mysql.statements import TABLES

__all__ = ["TABLES", "open_mysql"]
