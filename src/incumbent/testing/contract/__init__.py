"""The store contract as a suite: any store that passes it can be trusted with a lease.

    class TestMyStore(StoreContract):
        capabilities = MyEngine.capabilities      # cases that need others are left out
        hooks = frozenset({"cut"})                # what your World implements beside pass_time
        ttl = 0.5                                 # seconds that cases let pass with pass_time

        @pytest.fixture
        def world(self):
            yield World(MyEngine("mine://localhost"))

Every case runs through both sides of the engine: the blocking Store, and the AsyncStore in a loop
of its own. The class has no cases for hooks and capabilities that it does not declare; if the
engine contradicts the declaration, a case fails, so that none is left out unnoticed.
"""

from __future__ import annotations

import pytest

# This must come before the cases are imported, or their failures would not show values.
_PARTS = "suite leases records waits shared faults races crowds together processes registers"
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS.split()))

from incumbent.testing.contract.bench import Bench, Hook, World  # noqa: E402 - see above
from incumbent.testing.contract.network import NetworkWorld  # noqa: E402 - see above
from incumbent.testing.contract.suite import StoreContract  # noqa: E402 - see above

__all__ = ["Bench", "Hook", "NetworkWorld", "StoreContract", "World"]
