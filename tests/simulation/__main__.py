"""Replay one schedule and tell all that happens in it: python -m tests.simulation SEED."""

import logging
import sys

from tests.simulation.world import play


def main(seed: int) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s: %(message)s")
    result = play(seed, lambda line: sys.stdout.write(line + "\n") and None)
    faults = ", ".join(sorted(fault.value for fault in result.happened)) or "none"
    sys.stdout.write(f"{result.steps} steps, {result.workers} workers, faults: {faults}\n")
    for problem in result.problems:
        sys.stdout.write(f"WRONG: {problem}\n")
    return len(result.problems)


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]))))
