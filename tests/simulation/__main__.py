"""Replay one schedule and tell all that happens in it: python -m tests.simulation SEED.

python -m tests.simulation run        plays seeds and tells which are wrong, what befell them
                                      and what they cost
python -m tests.simulation bugs       plants one fault after the other and tells how many seeds
                                      it takes to find it, and by what
python -m tests.simulation hunt       checks the seeds of seeds.py, and where they no longer
                                      find their fault writes others there that do
"""

import logging
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from itertools import count
from statistics import median

from tests.simulation.bugs import BUGS
from tests.simulation.faults import Fault
from tests.simulation.hunt import hunt, results
from tests.simulation.seeds import REGRESSIONS
from tests.simulation.world import play


def replay(seed: int) -> bool:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s: %(message)s")
    result = play(seed, say)
    faults = ", ".join(sorted(fault.value for fault in result.happened)) or "none"
    say(f"{result.steps} steps, {result.workers} workers, faults: {faults}")
    for problem in result.problems:
        say(f"WRONG: {problem}")
    return not result.problems


def run(seeds: range, jobs: int) -> bool:
    """Play them all; whether nothing was wrong."""
    began = time.perf_counter()
    steps, wrong, happened = [], 0, Counter[Fault]()
    for result in results(seeds, jobs):
        steps.append(result.steps)
        happened.update(result.happened)
        wrong += bool(result.problems)
        for problem in result.problems:
            say(f"WRONG: {result.seed}: {problem}")
    took_s = time.perf_counter() - began
    say(f"{wrong} of {len(seeds)} wrong; {took_s:.1f} s, a median of {median(steps):.0f} steps")
    shares = (f"{fault.value} {happened[fault] / len(seeds):.1%}" for fault in Fault)
    say(", ".join(shares))
    return not wrong


def plant_all(jobs: int) -> bool:
    for name in BUGS:
        found = next(result for result in results(count(), jobs, name) if result.problems)
        say(f"{found.seed + 1:6} {name}: {found.problems[0][:100]}")
    return True


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> bool:
    parser = ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("what", metavar="SEED|run|bugs|hunt")
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="to hunt; all of seeds.py if none")
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--last", type=int, default=10_000, help="seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes that play schedules")
    given = parser.parse_args()
    seeds = range(given.first, given.last + 1)
    if given.what.isdigit():
        return replay(int(given.what))
    logging.disable(logging.CRITICAL)
    if given.what == "bugs":
        return plant_all(given.jobs)
    if given.what == "run":
        return run(seeds, given.jobs)
    if given.what == "hunt" and set(given.bugs) <= set(REGRESSIONS):
        return hunt(given.bugs or list(REGRESSIONS), seeds, given.jobs, say)
    parser.error(f"faults with seeds are {', '.join(REGRESSIONS)}")


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
