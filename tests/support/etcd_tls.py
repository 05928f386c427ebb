"""Certificates for etcd, made with openssl: the server's own, and clients' with or without a CN."""

from __future__ import annotations

import shutil
import subprocess
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.servers import MAY_SIGN, NEW_KEY, SIGNED_BY, ServerMissing

__all__ = ["ClientCertificate", "EtcdTls"]


@dataclass(frozen=True)
class ClientCertificate:
    """What a client shows."""

    cert: Path
    key: Path


class EtcdTls:
    """An authority, and a server's certificate for `names`; `demand` wants the clients' too."""

    def __init__(
        self, folder: Path, *, demand: bool = False, names: str = "IP:127.0.0.1,DNS:localhost"
    ) -> None:
        self.folder = folder
        self.names = names
        self.demand = demand
        self.ca = folder / "ca.crt"
        subject = ("-subj", "/CN=test authority", "-days", "2")
        out = ("-keyout", str(folder / "ca.key"), "-out", str(self.ca))
        _openssl("req", "-x509", *NEW_KEY, *subject, "-addext", MAY_SIGN, *out)
        # No CN: etcdctl shows it too, and a CN would name a user once there are passwords.
        self.server = self.certificate("server", "/O=etcd")

    def demanding(self) -> Self:
        """The same files for a server that wants a certificate of every client."""
        strict = copy(self)
        strict.demand = True
        return strict

    def certificate(self, name: str, subject: str) -> ClientCertificate:
        """Signed by the authority, for clients and servers; `subject` as `/CN=alice` or `/O=x`."""
        made = ClientCertificate(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        request, extra = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        usage = "extendedKeyUsage=serverAuth,clientAuth"
        extra.write_text(f"subjectAltName={self.names}\n{usage}\n{SIGNED_BY}\n")
        out = ("-keyout", str(made.key), "-out", str(request))
        _openssl("req", *NEW_KEY, "-subj", subject, *out)
        authority = ("-CA", str(self.ca), "-CAkey", str(self.folder / "ca.key"), "-CAcreateserial")
        extension = ("-extfile", str(extra), "-days", "2", "-out", str(made.cert))
        _openssl("x509", "-req", "-in", str(request), *authority, *extension)
        return made

    def server_options(self) -> list[str]:
        """Of etcd."""
        options = ["--cert-file", str(self.server.cert), "--key-file", str(self.server.key)]
        # Naming an authority is enough for etcd to demand certificates, so say both or nothing.
        strict = ["--trusted-ca-file", str(self.ca), "--client-cert-auth"]
        return [*options, *strict] if self.demand else options

    def etcdctl_options(self) -> list[str]:
        """Of etcdctl, which shows the server's certificate: it has no CN."""
        options = ["--cacert", str(self.ca), "--cert", str(self.server.cert)]
        return [*options, "--key", str(self.server.key)]


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise ServerMissing("no openssl on this machine: install it to test TLS")
    subprocess.run([program, *arguments], check=True, capture_output=True, timeout=30)
