"""A command learns which lease it has, and not where leases come from."""

from __future__ import annotations

from incumbent.supervise.launch import WITHHELD, child_environment

PARENT = {
    "PATH": "/bin",
    "INCUMBENT_STORE": "redis://:secret@host",
    "INCUMBENT_STORE_FILE": "/run/secrets/store",
    "INCUMBENT_STORE_PASSWORD_FILE": "/run/secrets/password",
    "INCUMBENT_LISTEN": "127.0.0.1:8080",
    "INCUMBENT_TOKEN_FILE": "/run/secrets/token",
    "NOTIFY_SOCKET": "/run/systemd/notify",
    "INCUMBENT_LEASE_NAME": "of-the-grandparent",
    "INCUMBENT_LEASE_SLOT": "old",
}


def made(*, slot: str | None = None, share_store: str | None = None) -> dict[str, str]:
    lease = {"NAME": "nightly", "HOLDER": "host:1", "TERM": "7", "SLOT": slot}
    return child_environment(PARENT, share_store, lease)


def test_the_lease_is_in_the_environment() -> None:
    lease = {name: value for name, value in made().items() if name.startswith("INCUMBENT_LEASE_")}
    assert lease == {
        "INCUMBENT_LEASE_NAME": "nightly",
        "INCUMBENT_LEASE_HOLDER": "host:1",
        "INCUMBENT_LEASE_TERM": "7",
    }


def test_the_slot_is_there_when_one_was_claimed() -> None:
    assert made(slot="once")["INCUMBENT_LEASE_SLOT"] == "once"


def test_the_store_and_every_way_to_it_are_withheld() -> None:
    child = made()
    assert child["INCUMBENT_STORE"] == WITHHELD
    assert not [name for name, value in child.items() if "secret" in value]


def test_the_port_and_the_service_manager_are_the_supervisors_own() -> None:
    assert not {"INCUMBENT_LISTEN", "INCUMBENT_TOKEN_FILE", "NOTIFY_SOCKET"} & set(made())


def test_a_shared_store_is_the_one_in_use() -> None:
    assert made(share_store="redis://other")["INCUMBENT_STORE"] == "redis://other"


def test_the_rest_of_the_environment_stays() -> None:
    assert made()["PATH"] == "/bin"
