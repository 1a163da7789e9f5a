"""Planted faults are found, and by the seeds that found those which were real."""

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
    """Whatever goes wrong counts: with a fault planted, a schedule may also break off."""
    try:
        return bool(play(seed).problems)
    except Exception:
        return True


@pytest.mark.parametrize("name", BUGS)
def test_planted_fault_is_found(name: str, record_property):
    with BUGS[name].planted():
        found = next((seed for seed in range(BUDGET) if is_wrong(seed)), None)
    assert found is not None
    record_property("seeds_to_find", found + 1)


@pytest.mark.parametrize("name", REGRESSIONS)
def test_fault_that_was_real_is_found_by_its_seeds_and_gone(name: str):
    with (BUGS | RARE)[name].planted():
        assert [seed for seed in REGRESSIONS[name] if not is_wrong(seed)] == []
    assert [seed for seed in REGRESSIONS[name] if is_wrong(seed)] == []
