"""The tables of "Coming from another lock", run."""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{of}" for of in ("of_etcd", "of_files", "of_jobs", "of_redis", "sides"))
)
