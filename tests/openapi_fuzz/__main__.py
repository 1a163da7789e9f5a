"""Rounds of schemathesis: python -m tests.openapi_fuzz [--cases 20000] [--seed 1]

Most rounds use a server without keys. One round uses a server with keys, and a key for everything.
Then each operation is requested without a key, and with a key that may only predict.
"""

import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import schemathesis

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.http.api_keys import new_key
from load_tests.security_report import record
from tests.openapi_fuzz.run import PHASES, STEPS, Found, run, wrongly_let_in

TITLE = "The API as described"
EXAMPLES, SCENARIOS = 30, 120
"""Cases of each operation while fuzzing, and scenarios that follow links, of a round."""
MODEL_BYTES = 32 * 1024**2
"""Of a model: specifications of huge ones are refused, as more than the machine has would be."""


@contextmanager
def server(*flags: str) -> Iterator[str]:
    """URL of a new server."""
    with tempfile.TemporaryDirectory(prefix="dualstream-described-") as folder:
        store = f"sqlite:///{Path(folder) / 'described.db'}"
        inputs = ["--max-model-bytes", str(MODEL_BYTES), *flags]
        with ServerProcess(store, inputs) as running:
            yield running.url


def rounds(cases: int, seed: int, result: Found) -> list[int]:
    """Run rounds up to this number of cases; returns their seeds."""
    seeds = []
    while result.cases.total() < cases:
        with server() as url:
            seeds.append(seed)
            run(url, seed, EXAMPLES, result, scenarios=SCENARIOS)
        seed += 1
        say(f"seed {seeds[-1]}: {result.cases.total()} cases, {len(result.failures)} failures")
    return seeds


def with_keys(seed: int) -> dict[str, Found]:
    """Findings on a server with keys, by kind of key."""
    keys = {name: new_key(name, name) for name in ("admin", "predict")}
    got: dict[str, Found] = {}
    with server("--keys", ";".join(key.line() for _, key in keys.values())) as url:
        for name in WHO:
            result = got[name] = Found()
            shown = keys[name][0] if name in keys else None
            phases = PHASES if name == "admin" else ("coverage",)
            run(url, seed, EXAMPLES, result, key=shown, phases=phases)
            if name != "admin":
                for label, status in wrongly_let_in(result, name if shown else None):
                    result.failures["scope", label, str(status)] = f"{name} was answered {status}"
            say(f"with the key of {name}: {result.cases.total()} cases")
    return got


def section(result: Found, seeds: Sequence[int], keyed: dict[str, Found]) -> list[str]:
    total = result.cases.total()
    statuses = Counter[int]()
    for (_, status), count in result.statuses.items():
        statuses[status] += count
    operations = len({label for label, _ in result.statuses})
    failures = [one for each in (result, *keyed.values()) for one in each.failures]
    lines = [
        f"`python -m tests.openapi_fuzz`: schemathesis {schemathesis.__version__} generates"
        " requests from `/openapi.json` and checks a real server's answers, with all its checks.",
        "",
        f"**{total:,} cases of {operations} operations without keys** (seeds"
        f" {seeds[0]} to {seeds[-1]}; "
        + ", ".join(f"{name} {result.cases[name]:,}" for name in PHASES)
        + f"; stateful scenarios follow the description's links for up to {STEPS} requests).",
        f"Found: {'nothing' if not failures else f'**{len(failures)} failures**'}.",
        "Answers: " + ", ".join(f"{status}: {n:,}" for status, n in sorted(statuses.items())) + ".",
        "All 503 answers are for a `min_seq` that is not reached, as documented.",
        "",
        "| check | made |",
        "|---|---|",
        *(f"| {name} | {count:,} |" for name, count in sorted(result.checks.items())),
        "",
        "With keys:",
        "",
        *(f"- {WHO[name]}: {each.cases.total():,} cases." for name, each in keyed.items()),
        "",
        "Two checks differ from their defaults. `positive_data_acceptance` accepts a documented"
        " refusal of a request that is valid by its schema, for reasons that a schema cannot"
        " express (a row of another width than the model's, contradicting fields), and it accepts"
        " 304. `use_after_free` leaves out refits: a deleted refit is cancelled and stays"
        " readable.",
    ]
    return lines + [f"- {name}, {label}: {title}" for name, label, title in failures]


WHO = {
    "admin": "a key for everything, all phases",
    "predict": "a key that may predict: 403 from every operation that needs more",
    "nobody": "no key: 401 from every operation that needs one",
}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> bool:
    parser = ArgumentParser(prog="python -m tests.openapi_fuzz")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    inputs = parser.parse_args()
    began, result = time.monotonic(), Found()
    seeds = rounds(inputs.cases, inputs.seed, result)
    keyed = with_keys(inputs.seed)
    record(TITLE, section(result, seeds, keyed))
    for each in (result, *keyed.values()):
        for what, got in each.failures.items():
            say(f"{what}\n{got}\n")
    say(f"{result.cases.total()} cases in {time.monotonic() - began:.0f} s")
    return not any(each.failures for each in (result, *keyed.values()))


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
