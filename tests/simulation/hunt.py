"""Which seeds find a planted fault, and keeping them in seeds.py.

A change of what schedules do moves them all: seeds that were kept find other things then, or
nothing. A hunt keeps those that still find their fault, and searches others for the rest.
"""

import logging
import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from tests.simulation.bugs import BUGS, RARE
from tests.simulation.seeds import REGRESSIONS
from tests.simulation.world import Result, play

WANTED = 2
"""So many seeds are kept of each fault."""
CHUNK = 20
SEEDS = Path(__file__).with_name("seeds.py")


def results(seeds: Iterable[int], jobs: int, bug: str | None = None) -> Iterator[Result]:
    """What became of the schedules of these seeds, in their order, played by some processes."""
    play(0)  # kernels are loaded once, not by each process
    with multiprocessing.get_context("fork").Pool(jobs, _quiet) as pool:
        yield from pool.imap(partial(_play, bug), seeds, CHUNK)


def hunt(bugs: Sequence[str], seeds: range, jobs: int, say: Callable[[str], None]) -> bool:
    """Find seeds for each of these faults and write them down; whether all were found."""
    text, is_whole = SEEDS.read_text(), True
    for bug in bugs:
        kept = tuple(_found(bug, REGRESSIONS[bug], jobs))
        missing = max(0, WANTED - len(kept))
        others = (seed for seed in seeds if seed not in kept)
        found = (*kept, *islice(_found(bug, others, jobs), missing))
        say(f"{bug}: {', '.join(map(str, found)) or 'none'} ({len(kept)} of them kept)")
        is_whole &= len(found) >= WANTED
        if found:
            text = written(text, bug, found)
            SEEDS.write_text(text)
    return is_whole


def written(text: str, bug: str, found: Sequence[int]) -> str:
    """The text of seeds.py with these seeds in the place of a fault's former ones."""
    kept = ", ".join(map(str, sorted(found))) + "," * (len(found) == 1)
    return re.sub(rf'("{re.escape(bug)}": )\(.*\)', rf"\g<1>({kept})", text)


def _found(bug: str, seeds: Iterable[int], jobs: int) -> Iterator[int]:
    """Those that find the fault while it is planted, and nothing without it."""
    for result in results(seeds, jobs, bug):
        if result.problems and not play(result.seed).problems:
            yield result.seed


def _play(bug: str | None, seed: int) -> Result:
    if bug is None:
        return play(seed)
    with (BUGS | RARE)[bug].planted():
        return play(seed)


def _quiet() -> None:
    logging.disable(logging.CRITICAL)
