"""Replay one schedule and print everything that happens: python -m tests.simulation SEED.

python -m tests.simulation run        runs seeds and prints which fail, their failures and
                                      their cost
python -m tests.simulation hunt       plants one fault after the other and prints how many seeds
                                      find it, and which check does; writes the seed down
"""

import logging
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from statistics import median

from tests.simulation.bugs import BUGS
from tests.simulation.faults import Fault
from tests.simulation.hunt import hunt, results
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


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> bool:
    parser = ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("what", metavar="SEED|run|hunt")
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="to hunt; all if none")
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--last", type=int, default=10_000, help="seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes that play schedules")
    inputs = parser.parse_args()
    seeds = range(inputs.first, inputs.last + 1)
    if inputs.what.isdigit():
        return replay(int(inputs.what))
    logging.disable(logging.CRITICAL)
    if inputs.what == "run":
        return run(seeds, inputs.jobs)
    if inputs.what == "hunt" and set(inputs.bugs) <= set(BUGS):
        return hunt(inputs.bugs or list(BUGS), seeds, inputs.jobs, say)
    parser.error(f"planted faults are {', '.join(BUGS)}")


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
