"""Replay one schedule and tell all that happens in it: python -m tests.simulation SEED.

`python -m tests.simulation bugs` plants one fault after the other and tells how many seeds it takes
to find it, and by what.
"""

import logging
import sys
from itertools import count

from tests.simulation.bugs import BUGS
from tests.simulation.world import play


def replay(seed: int) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s: %(message)s")
    result = play(seed, say)
    faults = ", ".join(sorted(fault.value for fault in result.happened)) or "none"
    say(f"{result.steps} steps, {result.workers} workers, faults: {faults}")
    for problem in result.problems:
        say(f"WRONG: {problem}")
    return 1 if result.problems else 0


def plant_all() -> int:
    logging.disable(logging.CRITICAL)
    for name, bug in BUGS.items():
        with bug.planted():
            found = next(result for seed in count() if (result := play(seed)).problems)
        say(f"{found.seed + 1:6} {name}: {found.problems[0][:100]}")
    return 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(plant_all() if sys.argv[1] == "bugs" else replay(int(sys.argv[1])))
