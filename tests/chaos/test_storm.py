"""Nothing acknowledged is lost and nothing is learned twice, whatever process is killed when.

DUALSTREAM_CHAOS_FAULTS says how many faults the storms make together (default 20),
DUALSTREAM_CHAOS_SEED where they begin.
"""

import asyncio
import os

from tests.chaos.report import Run, recorded
from tests.chaos.samples import MANY
from tests.chaos.storm import HELD, storm_on_redis, storm_on_sqlite
from tests.redis_server import redis_or_skip

FAULTS = int(os.environ.get("DUALSTREAM_CHAOS_FAULTS", "20"))
SEED = int(os.environ.get("DUALSTREAM_CHAOS_SEED", "1"))
WHAT = "storm: 4 workers, 16 clients, 3 models"
CROWDED = f"storm: 4 workers, 16 clients, {len(MANY)} models, {HELD} in memory"


def test_a_storm_on_sqlite(tmp_path):
    with recorded(Run(WHAT, "SQLite `normal`", seeds=[SEED])) as run:
        asyncio.run(storm_on_sqlite(run, SEED, FAULTS // 2, tmp_path))
    assert run.verdict == "held"


def test_a_storm_on_redis(tmp_path):
    with (
        redis_or_skip(appendfsync="always") as redis,
        recorded(Run(WHAT, "Redis `always`", seeds=[SEED])) as run,
    ):
        asyncio.run(storm_on_redis(run, SEED, FAULTS // 2, tmp_path, redis))
    assert run.verdict == "held"


def test_a_storm_on_many_models_and_sqlite(tmp_path):
    """Most of what is learned is learned by what is kept of models that left memory."""
    with recorded(Run(CROWDED, "SQLite `normal`", seeds=[SEED])) as run:
        asyncio.run(storm_on_sqlite(run, SEED, FAULTS // 4, tmp_path, MANY))
    assert run.verdict == "held"


def test_a_storm_on_many_models_and_redis(tmp_path):
    with (
        redis_or_skip(appendfsync="always") as redis,
        recorded(Run(CROWDED, "Redis `always`", seeds=[SEED])) as run,
    ):
        asyncio.run(storm_on_redis(run, SEED, FAULTS // 4, tmp_path, redis, MANY))
    assert run.verdict == "held"
