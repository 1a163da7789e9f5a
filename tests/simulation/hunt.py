"""Which seed is the first to find a planted fault, and writing it down in seeds.py.

A change of what schedules do moves them all: what was the first seed finds other things then, or
nothing.
"""

import gc
import logging
import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.simulation.bugs import BUGS
from tests.simulation.world import Result, play

CHUNK = 20
SEEDS = Path(__file__).with_name("seeds.py")


def results(seeds: Iterable[int], jobs: int, bug: str | None = None) -> Iterator[Result]:
    """What became of the schedules of these seeds, in their order, played by some processes."""
    play(0)  # kernels are loaded once, not by each process
    gc.freeze()  # nor do their collections traverse them, as in tests/conftest.py
    with multiprocessing.get_context("fork").Pool(jobs, _quiet) as pool:
        yield from pool.imap(partial(_play, bug), seeds, CHUNK)


def hunt(bugs: Sequence[str], seeds: range, jobs: int, say: Callable[[str], None]) -> bool:
    """Find the first of the seeds for each of these faults and write it down; whether all were."""
    firsts: dict[str, int] = {}
    for bug in bugs:
        result = next((result for result in results(seeds, jobs, bug) if result.problems), None)
        if result is None:
            say(f"     - {bug}")
            continue
        say(f"{result.seed + 1:6} {bug}: {result.problems[0][:100]}")
        firsts[bug] = result.seed
        SEEDS.write_text(written(SEEDS.read_text(), firsts))
    return len(firsts) == len(bugs)


def written(text: str, firsts: Mapping[str, int]) -> str:
    """The text of seeds.py with these seeds in the place of former ones, or behind them."""
    for bug, seed in firsts.items():
        text, previous = re.subn(rf'("{re.escape(bug)}": )\d+', rf"\g<1>{seed}", text)
        text = text if previous else text.replace("\n}", f'\n    "{bug}": {seed},\n}}')
    return text


def _play(bug: str | None, seed: int) -> Result:
    if bug is None:
        return play(seed)
    with BUGS[bug].planted():
        return play(seed)


def _quiet() -> None:
    logging.disable(logging.CRITICAL)
