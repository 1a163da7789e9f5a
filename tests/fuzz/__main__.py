"""Fuzz all targets: python -m tests.fuzz [--minutes 30] [--jobs N] [TARGET ...]"""

import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor

from load_tests.security_report import record
from tests.fuzz.corpus import CORPUS, LIMIT_S, ROOT
from tests.fuzz.seeds import SEEDS

WORK = ROOT / ".cache/fuzz"
LONGEST = 4096
"""Bytes of an input."""
RSS_MB = 2048


def fuzz(name: str, seconds: int) -> bool:
    """Fuzz a target for some seconds; returns whether nothing was found."""
    work = WORK / name
    inputs = work / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]()):
        (inputs / f"seed-{number}").write_bytes(seed)
    kept = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
    done = in_python(
        *("tests.fuzz.session", name, str(work), str(inputs), *kept),
        f"-max_total_time={seconds}",
        *(f"-timeout={LIMIT_S}", f"-rss_limit_mb={RSS_MB}", f"-max_len={LONGEST}"),
        *(f"-artifact_prefix={work}/", "-print_final_stats=1", "-verbosity=1"),
    )
    got = done.stdout + done.stderr
    units = re.findall(r"number_of_executed_units:\s*(\d+)", got)
    branches = re.findall(r"cov: (\d+)", got)
    if done.returncode:
        say(f"{name}: WRONG, see {work}\n" + got[-4000:])
        return False
    shrunk = in_python("tests.fuzz.corpus", "shrink", name, str(inputs))
    if shrunk.returncode:
        say(f"{name}: WRONG\n" + shrunk.stderr[-4000:])
        return False
    of = json.loads(shrunk.stdout)
    say(
        f"{name:12} {int(units[-1]) if units else 0:10,} inputs in {seconds} s, "
        f"{branches[-1] if branches else '?'} branches, {of['lines'] / of['of']:.0%} of "
        f"{of['of']} lines; {of['kept']} inputs of {of['bytes']:,} bytes are kept"
    )
    return True


def in_python(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a module with kernels as plain Python, unless the environment says otherwise."""
    inputs = os.environ | {"NUMBA_DISABLE_JIT": "1"} | environment
    return subprocess.run(
        [sys.executable, "-m", *arguments], env=inputs, cwd=ROOT, capture_output=True, text=True
    )


def checked_by_bounds() -> bool:
    """Run all kept inputs on kernels compiled with bounds checks; true if nothing was found."""
    done = in_python("tests.fuzz.corpus", "replay", NUMBA_DISABLE_JIT="0", NUMBA_BOUNDSCHECK="1")
    said = done.stdout.strip() if done.returncode == 0 else "WRONG\n" + done.stderr[-4000:]
    say(f"compiled with bounds checks: {said} inputs")
    return done.returncode == 0


_said: list[str] = []


def say(line: str) -> None:
    _said.append(line)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> bool:
    parser = ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(SEEDS))
    parser.add_argument("--minutes", type=float, default=30.0, help="for all of them together")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="as many targets at a time"
    )
    inputs = parser.parse_args()
    if unknown := set(inputs.targets) - set(SEEDS):
        parser.error(f"no targets: {', '.join(sorted(unknown))}")
    targets = inputs.targets or list(SEEDS)
    seconds = max(1, int(60 * inputs.minutes / len(targets)))
    # Run all, whatever one finds. Threads only wait; processes do the work.
    with ThreadPoolExecutor(inputs.jobs) as pool:
        good = list(pool.map(lambda name: fuzz(name, seconds), targets))
    is_good = checked_by_bounds() and all(good)
    if not inputs.targets:
        outcome = "no findings" if is_good else "**findings**"
        head = f"`python -m tests.fuzz --minutes {inputs.minutes:g}`, of all targets, "
        head += f"{inputs.jobs} at a time: {outcome}."
        record("Fuzzing", [head, "", "```", *_said, "```"])
    return is_good


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
