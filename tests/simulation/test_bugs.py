"""Planted faults are found, and those which were real by the seeds that are kept of them.

`python -m tests.simulation bugs` tells how many seeds each takes.
"""

import gc
import logging
from collections.abc import Iterator

import pytest

from tests.simulation.bugs import BUGS, RARE
from tests.simulation.seeds import REGRESSIONS
from tests.simulation.world import play

BUDGET = 1000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


def is_wrong(seed: int) -> bool:
    return bool(play(seed).problems)


@pytest.mark.parametrize("name", BUGS)
def test_planted_fault_is_found(name: str):
    with BUGS[name].planted():
        assert any(is_wrong(seed) for seed in range(BUDGET))


@pytest.mark.parametrize("name", REGRESSIONS)
def test_fault_that_was_real_is_found_by_its_seeds_and_gone(name: str):
    with (BUGS | RARE)[name].planted():
        assert [seed for seed in REGRESSIONS[name] if not is_wrong(seed)] == []
    assert [seed for seed in REGRESSIONS[name] if is_wrong(seed)] == []
