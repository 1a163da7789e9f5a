"""`make soak`: memory under constant load, which has to stay flat.

Single samples are learned and predicted at a fixed rate, and a long body is learned in chunks in
each period. Afterwards the journal is read: each answered row must be in it once.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from dualstream.service.cli.demo.adult import adult_lines
from load_tests.__main__ import RESULTS, machine
from load_tests.http import CONNECTIONS, Side, as_json, check_spans, ours
from load_tests.ingest.upload import upload
from load_tests.open_loop import drive, post
from load_tests.sections import with_section

TITLE = "Soak"
RATE, PERIOD_S = 500, 5.0
PREDICT_EVERY = 4
"""One request in this many predicts."""
BODY_COPIES = 1
"""Of a9a, in the long body of each period."""
WARM_SHARE = 0.2
"""Of the whole time, after which memory has to be flat."""
MAX_GROWTH = 0.05


@dataclass
class Soak:
    """Resident bytes after each period, in order, and what was answered."""

    resident: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    requests: int = 0

    @property
    def settled(self) -> list[int]:
        """From the end of the warm-up on."""
        return self.resident[int(WARM_SHARE * len(self.resident)) :]

    @property
    def spread(self) -> float:
        """Maximum minus minimum."""
        return max(self.settled) / min(self.settled) - 1.0


def soaked(side: Side, minutes: float) -> Soak:
    """Load for so long."""
    lines = adult_lines()
    requests = [request_of(index, line) for index, line in enumerate(lines[:5000])]
    body = b"\n".join(lines * BODY_COPIES) + b"\n"
    soak, ends = Soak(), time.monotonic() + 60.0 * minutes
    while time.monotonic() < ends:
        run = drive(side.url, requests, RATE, PERIOD_S, CONNECTIONS)
        done = upload(side.url, side.target, "text/x-libsvm", [body])
        soak.spans += [*((seq, 1) for seq in run.acks), *done.spans]
        soak.requests += len(run.latencies) + 1
        soak.resident.append(resident_bytes(side.server))
        print(f"{soak.requests:,} requests, {soak.resident[-1] / 1e6:.1f} MB", flush=True)
    return soak


def request_of(index: int, line: bytes) -> bytes:
    target = "predict" if index % PREDICT_EVERY == 0 else "learn"
    return post(f"/models/bench/{target}", as_json(line).encode())


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"process {pid} does not tell its resident memory")


def got(soak: Soak, minutes: float, wrong: str) -> list[str]:
    is_flat = soak.spread <= MAX_GROWTH
    shown = [soak.resident[0], soak.settled[0], max(soak.settled), soak.resident[-1]]
    after, settled, most, last = (f"{size / 1e6:.1f}" for size in shown)
    outcome = wrong and f"void: {wrong}" or ("gate met" if is_flat else "gate MISSED")
    rows = sum(count for _, count in soak.spans)
    return [
        f"`make soak SOAK_MINUTES={minutes:g}` on {datetime.now(UTC):%Y-%m-%d}; {machine()}.",
        "",
        f"{minutes:g} minutes on SQLite `normal`, one worker: {RATE:,} single samples of JSON a "
        f"second over {CONNECTIONS} connections, one in {PREDICT_EVERY} a predict, and every "
        f"{PERIOD_S:g} s Adult as one body of LIBSVM text: {soak.requests:,} requests, {rows:,} "
        "rows learned. The history is checked afterwards.",
        "",
        "| after the first period | after a fifth of the time | maximum from then on | at the end "
        "| minimum to maximum from then on | gate | outcome |",
        "|---|---|---|---|---|---|---|",
        f"| {after} MB | {settled} MB | {most} MB | {last} MB | {soak.spread:.1%} | "
        f"{MAX_GROWTH:.0%} | {outcome} |",
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m load_tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args(arguments).minutes
    with tempfile.TemporaryDirectory(prefix="dualstream-soak-") as folder:
        url = f"sqlite:///{folder}/soak.db"
        with ours(url, "normal") as side:
            soak = soaked(side, minutes)
        wrong = asyncio.run(check_spans(url, "bench", soak.spans))
    lines = got(soak, minutes, wrong)
    RESULTS.write_text(with_section(RESULTS.read_text(), TITLE, lines))
    print("\n".join(lines))
    return 0 if not wrong and soak.spread <= MAX_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
