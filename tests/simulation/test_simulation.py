"""Thousands of schedules: whatever befalls workers and journal, the invariants hold.

`make test` plays the first fortieth of the schedules and those that find a planted fault.
`make chaos`, which sets DUALSTREAM_CHAOS_ROUNDS, plays all.
"""

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.simulation.faults import Fault
from tests.simulation.seeds import FIRST, SCHEDULES
from tests.simulation.world import Result, play

IS_FULL = "DUALSTREAM_CHAOS_ROUNDS" in os.environ
FOUND = (2581, 4107)
"""Seeds beyond the sample that have found faults of the service."""
PLAYED = range(SCHEDULES) if IS_FULL else sorted({*range(SCHEDULES // 40), *FIRST.values(), *FOUND})
CASES = 20
STEPS, SHARE = 30, 0.05


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults are planted by the thousand: what the service logs of them costs more than they."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def replayed_by(result: Result) -> str:
    problems = "\n  ".join(result.problems)
    return f"python -m tests.simulation {result.seed}\n  {problems}"


@pytest.fixture
def got(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Path:
    """Where the cases of this run, of whichever process, say how often each fault happened."""
    path = tmp_path_factory.getbasetemp().parent / f"simulated-{testrun_uid}"
    path.mkdir(exist_ok=True)
    return path


@pytest.mark.parametrize("case", range(CASES))
def test_invariants_hold_in_every_schedule(case: int, got: Path):
    results = [play(seed) for seed in PLAYED[case::CASES]]
    failed = [replayed_by(result) for result in results if result.problems]
    assert not failed, "\n".join(failed)
    # And they were worth it.
    assert median(result.steps for result in results) >= STEPS
    assert min(result.workers for result in results) >= 2
    happened = Counter(fault.value for result in results for fault in result.happened)
    (got / f"{case}.writing").write_text(json.dumps(happened))
    (got / f"{case}.writing").rename(got / f"{case}.json")
    cases = list(got.glob("*.json"))
    if len(cases) == CASES:  # the last one to arrive
        total = sum((Counter(json.loads(path.read_text())) for path in cases), Counter())
        least = SHARE * len(PLAYED)
        assert {fault: n for fault in Fault if (n := total[fault.value]) < least} == {}


def test_schedule_is_the_same_each_time():
    def got(seed: int) -> list[str]:
        lines: list[str] = []
        play(seed, lines.append)
        return lines

    for seed in range(20):
        assert got(seed) == got(seed)


def test_schedule_does_not_depend_on_the_process():
    """Nor on its hash seed, which is random in this process."""
    here: list[str] = []
    play(3, here.append)
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", "from tests.simulation.world import play; play(3, print)"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == here and len(here) > 50
