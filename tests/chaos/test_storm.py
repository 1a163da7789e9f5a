"""Storm tests: no acknowledged row is lost or learned twice, whatever is killed when.

DUALSTREAM_CHAOS_FAULTS is the number of faults of all storms together (default 8),
DUALSTREAM_CHAOS_SEED is their first seed.
"""

import asyncio
import os

from tests.chaos.report import Run, recorded
from tests.chaos.samples import MANY
from tests.chaos.storm import HELD, storm_on_redis, storm_on_sqlite
from tests.redis_server import redis_or_skip

FAULTS = int(os.environ.get("DUALSTREAM_CHAOS_FAULTS", "8"))
SEED = int(os.environ.get("DUALSTREAM_CHAOS_SEED", "1"))
WHAT = "storm: 4 workers, 16 clients, 3 models"
CROWDED = f"storm: 4 workers, 16 clients, {len(MANY)} models, {HELD} in memory"


def test_a_storm_on_sqlite(tmp_path):
    with recorded(Run(WHAT, "SQLite `normal`", seeds=[SEED])) as run:
        asyncio.run(storm_on_sqlite(run, SEED, FAULTS // 2, tmp_path))
    assert run.outcome == "passed"


def test_a_storm_on_redis(tmp_path):
    with (
        redis_or_skip(appendfsync="always") as redis,
        recorded(Run(WHAT, "Redis `always`", seeds=[SEED])) as run,
    ):
        asyncio.run(storm_on_redis(run, SEED, FAULTS // 2, tmp_path, redis))
    assert run.outcome == "passed"


def test_a_storm_on_many_models_and_sqlite(tmp_path):
    """Models are evicted and loaded again throughout."""
    with recorded(Run(CROWDED, "SQLite `normal`", seeds=[SEED])) as run:
        asyncio.run(storm_on_sqlite(run, SEED, FAULTS // 4, tmp_path, MANY))
    assert run.outcome == "passed"


def test_a_storm_on_many_models_and_redis(tmp_path):
    with (
        redis_or_skip(appendfsync="always") as redis,
        recorded(Run(CROWDED, "Redis `always`", seeds=[SEED])) as run,
    ):
        asyncio.run(storm_on_redis(run, SEED, FAULTS // 4, tmp_path, redis, MANY))
    assert run.outcome == "passed"
