"""Planted faults are found, and those which were real by the seeds that are kept of them.

`python -m tests.simulation bugs` tells how many seeds each takes.
"""

import gc
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.bugs import BUGS, RARE
from tests.simulation.hunt import SEEDS, results, written
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


def test_hunt_writes_seeds_in_the_place_of_a_faults_former_ones():
    text = SEEDS.read_text()
    first, *others = REGRESSIONS
    changed: dict[str, Any] = {}
    exec(written(written(text, first, [70, 7]), others[0], [5]), changed)
    assert changed["REGRESSIONS"] == REGRESSIONS | {first: (7, 70), others[0]: (5,)}
    again = written(text, first, REGRESSIONS[first])
    assert again == text


def test_schedules_are_the_same_in_other_processes():
    seeds = range(5)
    name = "no nonce on retry"
    with BUGS[name].planted():
        here = [play(seed) for seed in seeds]
    assert list(results(seeds, 2, name)) == here
