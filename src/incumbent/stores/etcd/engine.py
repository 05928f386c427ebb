"""From a URL to an engine, which makes its blocking and its asynchronous side."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from incumbent.errors import ConfigError
from incumbent.model import Capabilities
from incumbent.protocol.port import run
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.etcd.doctor import diagnose
from incumbent.stores.etcd.incarnation import Cluster
from incumbent.stores.etcd.site import Site
from incumbent.stores.etcd.sync import EtcdStore
from incumbent.stores.etcd.url import EtcdOptions, parse_etcd_url
from incumbent.stores.loops import ServerEngine

if TYPE_CHECKING:
    from incumbent.stores.etcd.aio import AsyncEtcdStore

__all__ = ["EtcdEngine", "open_etcd"]


def open_etcd(url: str) -> EtcdEngine:
    """The engine of a URL. Connects to nothing.

    Raises ConfigError for a malformed URL, an unknown option, or a certificate that is no such.
    """
    return EtcdEngine(parse_etcd_url(url))


class EtcdEngine(ServerEngine[EtcdStore, "AsyncEtcdStore"]):
    """One cluster."""

    capabilities = Capabilities(
        waits="watch",
        ttl_min=1.0,
        ttl_unit=1.0,
        ttl_clock="consensus",
        survives_failover=True,
        candidates=True,
        reservations=True,
        refuses_late=True,
    )

    def __init__(self, options: EtcdOptions) -> None:
        site = Site(options, _context(options) if options.tls else None)
        self._site = site
        dialect = Dialect(Cluster(site))

        def make() -> AsyncEtcdStore:
            # Imported only now: the blocking side has no use for asyncio.
            from incumbent.stores.etcd.aio import AsyncEtcdStore

            return AsyncEtcdStore(dialect)

        super().__init__(options.shown, EtcdStore(dialect), make)

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        """See Engine.diagnose. Looks also at a cluster that would be refused."""
        return run(diagnose(self._store.operations.client, ttl, until))


def _context(options: EtcdOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ca={options.ca} cannot be used: {error}", name="ca") from error
    if options.cert is not None:
        try:
            context.load_cert_chain(options.cert, options.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cert={options.cert}, key={options.key} cannot be used: {error}", name="cert"
            ) from error
    return context
