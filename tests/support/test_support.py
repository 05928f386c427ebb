"""The servers and the network under the tests do what they say."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import servers
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer, ServerFailed, ServerMissing, TlsFiles

pytestmark = pytest.mark.server

PING = b"*1\r\n$4\r\nPING\r\n"
COUNT = b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n"


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with connect(proxy) as sock:
        assert ask(sock) == b"+PONG\r\n"
        yield sock


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def ask(sock: socket.socket, request: bytes = PING) -> bytes:
    sock.sendall(request)
    return sock.recv(4096)


def is_silent(sock: socket.socket, seconds: float = 0.15) -> bool:
    sock.settimeout(seconds)
    try:
        sock.recv(4096)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(5)
    return False


def eventually_counts(server: RedisServer, expected: str) -> bool:
    give_up = time.monotonic() + 5
    while server.cli("GET", "n") != expected and time.monotonic() < give_up:
        time.sleep(0.01)
    return server.cli("GET", "n") == expected


# -- servers


def test_a_server_that_is_missing_fails_loudly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(servers, "SERVERS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerMissing, match=r"scripts/servers\.sh"):
        RedisServer()


def test_a_server_that_cannot_start_fails_with_what_it_said() -> None:
    with pytest.raises(ServerFailed, match="no-such-option"):
        RedisServer(["--no-such-option", "1"])


def test_a_server_restarted_keeps_its_port_and_loses_its_data(own_redis: RedisServer) -> None:
    port, pid = own_redis.port, own_redis.pid
    own_redis.cli("SET", "n", "1")
    own_redis.restart(empty=True)
    assert own_redis.port == port
    assert own_redis.pid != pid
    assert own_redis.cli("EXISTS", "n") == "0"


def test_a_server_that_appends_to_a_file_keeps_its_data_when_killed() -> None:
    with RedisServer(["--appendonly", "yes", "--appendfsync", "always"]) as server:
        server.cli("SET", "n", "1")
        server.restart()
        assert server.cli("GET", "n") == "1"


def test_a_frozen_server_answers_only_when_thawed(
    own_redis: RedisServer, client: socket.socket
) -> None:
    own_redis.freeze()
    client.sendall(PING)
    assert is_silent(client)
    own_redis.thaw()
    assert client.recv(4096) == b"+PONG\r\n"


def test_a_frozen_server_can_be_stopped() -> None:
    server = RedisServer()
    server.freeze()
    server.stop()
    with pytest.raises(ServerFailed, match="not running"):
        _ = server.pid


def test_a_password_is_part_of_the_url_and_asked_for() -> None:
    with RedisServer(password="sesame") as server:
        assert server.url == f"redis://:sesame@127.0.0.1:{server.port}"
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
            assert ask(sock).startswith(b"-NOAUTH")


def test_a_unix_socket_answers() -> None:
    with RedisServer(unix_socket=True) as server, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(server.socket_url.removeprefix("redis+unix://"))
        assert ask(sock) == b"+PONG\r\n"


def test_a_server_with_tls_shows_a_certificate_of_its_authority(tmp_path: Path) -> None:
    with RedisServer(tls=TlsFiles(tmp_path)) as server:
        assert server.url.startswith("rediss://")
        assert server.cli("PING") == "PONG"


# -- the network


def test_a_delay_counts_each_way(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.delay(0.1)
    begin = time.monotonic()
    assert ask(client) == b"+PONG\r\n"
    assert time.monotonic() - begin >= 0.2


def test_lost_replies_leave_the_request_carried_out(
    proxy: FaultProxy, client: socket.socket, own_redis: RedisServer
) -> None:
    proxy.drop_replies()
    client.sendall(COUNT)
    assert eventually_counts(own_redis, "1")
    assert is_silent(client)


def test_a_connection_that_lost_bytes_is_closed_when_healed(
    proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.drop_requests()
    client.sendall(COUNT)
    assert is_silent(client)
    proxy.heal()
    assert client.recv(4096) == b""


def test_what_a_black_hole_held_back_arrives_late(
    proxy: FaultProxy, client: socket.socket, own_redis: RedisServer
) -> None:
    proxy.blackhole()
    client.sendall(COUNT)
    assert is_silent(client)
    assert own_redis.cli("EXISTS", "n") == "0"
    proxy.heal()
    assert client.recv(4096) == b":1\r\n"


def test_a_black_hole_lets_clients_connect_and_tells_them_nothing(proxy: FaultProxy) -> None:
    proxy.blackhole()
    with connect(proxy) as sock:
        sock.sendall(PING)
        assert is_silent(sock)


def test_a_refusing_network_cuts_and_refuses_until_healed(
    proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.refuse()
    assert client.recv(4096) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    with connect(proxy) as sock:
        assert ask(sock) == b"+PONG\r\n"


def test_a_cut_ends_present_connections_only(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.cut()
    assert client.recv(4096) == b""
    with connect(proxy) as sock:
        assert ask(sock) == b"+PONG\r\n"


def test_a_connection_closed_after_its_request_had_it_carried_out_once(
    proxy: FaultProxy, client: socket.socket, own_redis: RedisServer
) -> None:
    proxy.close_after_request(b"INCR")
    assert ask(client, COUNT) == b""
    assert own_redis.cli("GET", "n") == "1"
    with connect(proxy) as sock:
        assert ask(sock, COUNT) == b":2\r\n"


def test_a_server_that_is_gone_closes_the_client(proxy: FaultProxy, own_redis: RedisServer) -> None:
    own_redis.kill()
    with connect(proxy) as sock:
        assert sock.recv(4096) == b""
