"""The MariaDB servers of the tests keep out of each other's way."""

from __future__ import annotations

from tests.support.mariadb import MariaServer


def test_a_server_that_starts_leaves_the_temporary_tables_of_others(
    maria_server: MariaServer,
) -> None:
    with maria_server.connect("mysql") as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE kept (a INT) ENGINE=Aria")
        cursor.execute("INSERT INTO kept VALUES (1)")
        with MariaServer():
            cursor.execute("FLUSH TABLES")
            cursor.execute("SELECT a FROM kept")
            assert cursor.fetchall() == ((1,),)
        cursor.execute("DROP TEMPORARY TABLE kept")
