"""Planted faults are found by schedules that `make test` runs.

`python -m tests.simulation hunt` prints how many seeds find each, and writes the seeds down.
"""

import gc
import logging
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.bugs import BUGS
from tests.simulation.hunt import SEEDS, results, written
from tests.simulation.seeds import FIRST, SCHEDULES
from tests.simulation.world import play


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Runs to the end: errors left by a planted fault are reported when they are collected."""
    logging.disable(logging.CRITICAL)
    yield
    gc.collect()
    logging.disable(logging.NOTSET)


def is_wrong(seed: int) -> bool:
    return bool(play(seed).problems)


FOUND_ELSEWHERE = {
    "own refit taken for another": "tests.service.features.refits.test_refits:"
    "test_a_result_whose_append_went_unseen_is_its_own_when_sent_again",
    "nothing cleaned behind a rebuilding": "tests.service.features.unlearning.test_unlearning:"
    "test_replica_ahead_of_the_store_cleans_it_of_unlearned_rows",
    "copy without a name left behind": "tests.service.features.unlearning.test_unlearning:"
    "test_a_rollback_that_does_not_enter_leaves_no_copy",
}
"""Faults that need a rare race: none of 10,000 schedules finds them. These tests fail with them."""


@pytest.mark.parametrize("name", [name for name in BUGS if name not in FOUND_ELSEWHERE])
def test_planted_fault_is_found(name: str):
    """By its seed, or by another one if a change moved the seeds since the last hunt."""
    with BUGS[name].planted():
        assert any(is_wrong(seed) for seed in (FIRST[name], *range(SCHEDULES // 4)))


def test_faults_that_schedules_do_not_find_have_a_test():
    assert set(FOUND_ELSEWHERE) <= set(BUGS)
    for test in FOUND_ELSEWHERE.values():
        assert callable(pkgutil.resolve_name(test))


def test_seeds_are_of_planted_faults_and_among_the_schedules():
    assert set(FIRST) == set(BUGS) - set(FOUND_ELSEWHERE)
    assert set(FIRST.values()) <= set(range(SCHEDULES))


def test_hunt_writes_seeds_in_the_place_of_former_ones():
    text = SEEDS.read_text()
    first, *_ = FIRST
    changed: dict[str, Any] = {}
    exec(written(text, {first: 70, "a new one": 5}), changed)
    assert changed["FIRST"] == FIRST | {first: 70, "a new one": 5}
    assert written(text, {first: FIRST[first]}) == text


def test_schedules_are_the_same_in_other_processes():
    seeds = range(5)
    name = "no nonce on retry"
    with BUGS[name].planted():
        here = [play(seed) for seed in seeds]
    assert list(results(seeds, 2, name)) == here
