"""All mutations."""

from __future__ import annotations

from typing import Final

from tests.mutants import (
    of_core,
    of_cron,
    of_fencing,
    of_kubernetes,
    of_lines,
    of_locks,
    of_mysql,
    of_notify,
    of_redis,
    of_rules,
    of_shards,
    of_stores,
    of_supervision,
    of_threads,
)
from tests.mutants.mutation import Mutation

MUTATIONS: Final[tuple[Mutation, ...]] = (
    *of_rules.MUTATIONS,
    *of_core.MUTATIONS,
    *of_threads.MUTATIONS,
    *of_redis.MUTATIONS,
    *of_stores.MUTATIONS,
    *of_mysql.MUTATIONS,
    *of_kubernetes.MUTATIONS,
    *of_lines.MUTATIONS,
    *of_locks.MUTATIONS,
    *of_supervision.MUTATIONS,
    *of_cron.MUTATIONS,
    *of_notify.MUTATIONS,
    *of_fencing.MUTATIONS,
    *of_shards.MUTATIONS,
)
