"""The store contract as a suite: any store that passes it can be trusted with a lease.

    class TestMyStore(StoreContract):
        capabilities = MyEngine.capabilities      # what does not apply is not generated
        hooks = frozenset({"cut"})                # what your World can do beside passing time
        ttl = 0.5                                 # seconds that pass_time may have to wait out

        @pytest.fixture
        def world(self):
            yield World(MyEngine("mine://localhost"))

Every case runs through both sides of the engine: the blocking Store, and the AsyncStore in a loop
of its own. Cases for hooks and capabilities that the class does not declare do not exist in it;
a declaration that the engine contradicts is a failure, so nothing is left out unseen.
"""

from __future__ import annotations

import pytest

# Before the cases are imported, or their failures would not show the compared values.
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("suite", "leases", "records", "waits", "shared", "faults"))
)

from incumbent.testing.contract.bench import Bench, Hook, World  # noqa: E402 - see above
from incumbent.testing.contract.suite import StoreContract  # noqa: E402 - see above

__all__ = ["Bench", "Hook", "StoreContract", "World"]
