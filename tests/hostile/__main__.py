"""All hostile clients in full numbers, and their effect on other clients: python -m tests.hostile

Each attack runs in a process of its own. Before, during and after it, one normal client learns,
predicts and asks /livez at a fixed rate. Its latency counts from the due time of a request.
"""

import asyncio
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import msgspec

from dualstream.service.cli.demo.server_process import ServerProcess
from load_tests.security_report import record
from tests.hostile.attacks import ATTACKS, Outcomes
from tests.hostile.key_timing import LEAK_T, measure
from tests.hostile.talk import Target, request

TITLE = "Hostile clients"
TIMEOUT_S = 5.0
SECONDS, CALM_S = 20.0, 10.0
RATE = 100.0
"""Requests a second of the normal client."""
MAX_TIMES = 3.0
MEGA = 1024**2
SPEC = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 5}}


@dataclass(frozen=True)
class Line:
    """Result of one attack."""

    name: str
    outcomes: Outcomes
    calm_ms: float
    during_ms: float
    before_mb: float
    after_mb: float

    @property
    def times(self) -> float:
        return self.during_ms / self.calm_ms

    @property
    def outcome(self) -> str:
        wrong = sorted(set(self.outcomes) - ATTACKS[self.name].ends)
        missed = [f"ended otherwise: {', '.join(wrong)}"] if wrong else []
        missed += ["none came to an end"] if not self.outcomes else []
        missed += ["p99"] if self.times > MAX_TIMES else []
        return f"**MISSED**: {'; '.join(missed)}" if missed else "passed"


async def latencies_ms(target: Target, seconds: float) -> list[float]:
    """Latencies of requests due at a fixed rate, each answered before the next is sent."""
    row = b'{"x": {"1": 1, "3": 0.5}, "y": 1}'
    requests = [
        request(b"POST", target.learn, row, close=False),
        request(b"GET", b"/models/m/predict?x=1:1", close=False),
        request(b"GET", b"/livez", close=False),
    ]
    results: list[float] = []
    reader, writer = await asyncio.open_connection(target.host, target.port)
    began = time.perf_counter()
    for number in range(int(seconds * RATE)):
        due = began + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        writer.write(requests[number % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the normal client was answered {head!r}")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(size)
        results.append(1000.0 * (time.perf_counter() - due))
    writer.close()
    return results


def p99(times: Sequence[float]) -> float:
    return sorted(times)[math.ceil(0.99 * len(times)) - 1]


def measured(name: str, target: Target, server: ServerProcess, seconds: float) -> Line:
    """One attack, with a calm period before and after."""
    before_mb = resident_mb(server)
    calm = asyncio.run(latencies_ms(target, CALM_S))
    command = [sys.executable, "-m", "tests.hostile", "--attack", name, "--seconds", str(seconds)]
    command += ["--target", msgspec.json.encode(target).decode()]
    attacker = subprocess.Popen(_on_core(1, ["nice", *command]), stdout=subprocess.PIPE)
    assert attacker.stdout is not None
    attacker.stdout.readline()  # it prints a line when it begins
    during = asyncio.run(latencies_ms(target, seconds))
    got = attacker.communicate()[0]
    if attacker.returncode:
        raise RuntimeError(f"the attacker failed: {name}")
    calm += asyncio.run(latencies_ms(target, CALM_S))
    outcomes = Outcomes(msgspec.json.decode(got, type=dict[str, int]))
    return Line(name, outcomes, p99(calm), p99(during), before_mb, resident_mb(server))


def _on_core(core: int, command: list[str]) -> list[str]:
    if shutil.which("taskset") is None or (os.cpu_count() or 1) < 2:
        return command
    return ["taskset", "-c", str(core), *command]


def resident_mb(server: ServerProcess) -> float:
    got = Path(f"/proc/{server.process.pid}/statm").read_text().split()
    return int(got[1]) * resource.getpagesize() / MEGA


def section(lines: Sequence[Line], leak: tuple[float, float]) -> list[str]:
    welch, planted = leak
    is_kept = abs(welch) < LEAK_T < planted
    return [
        "`python -m tests.hostile`: attackers run in a process of their own. One normal client"
        f" learns, predicts and asks /livez {RATE:g} times a second, before, during and after the"
        " attack. The server is on one core, all clients on another. `MAX_HEAD_S` and"
        f" `MAX_BODY_STEP_S` are {TIMEOUT_S:g} s; other settings have their defaults. Ends: the"
        " status codes that the attacker received, and whether the server closed the connection."
        f" Gate: the normal client's p99 grows at most {MAX_TIMES:g} times.",
        "",
        "| attack | at once | ends | p99 of others: calm, during, ratio | memory before, after | |",
        "|---|---|---|---|---|---|",
        *(_row(line) for line in lines),
        "",
        "Slow attackers hold their connection as long as possible; the others come at a fixed"
        f" rate: {', '.join(f'{n} {a.per_s:g}/s' for n, a in ATTACKS.items() if a.per_s)}.",
        "",
        "Timing of wrong keys: does a key with a correct prefix take longer than others? Welch's t"
        f" of 10,000 samples of each is {welch:.1f} (above {LEAK_T} it is a leak); for a comparison"
        f" that stops at the first wrong byte, as a control, {planted:,.0f}."
        f" {'Passed.' if is_kept else '**MISSED**.'}",
        "",
        "Idempotency keys replayed on other models: `tests/hostile/test_hostile.py`, which"
        " also runs all attacks in small numbers in each `make test`.",
    ]


def _row(line: Line) -> str:
    attack = ATTACKS[line.name]
    ends = ", ".join(f"{n:,} x {end}" for end, n in line.outcomes.most_common())
    felt = f"{line.calm_ms:.1f} ms, {line.during_ms:.1f} ms, {line.times:.1f}"
    memory = f"{line.before_mb:.0f} MiB, {line.after_mb:.0f} MiB"
    cells = (f"{line.name}: {attack.does}", f"{attack.many:,}", ends, felt, memory, line.outcome)
    return f"| {' | '.join(cells)} |"


def attack_alone(name: str, target: Target, seconds: float) -> None:
    """The attacker's process: prints its results as JSON."""
    one = ATTACKS[name]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    pieces = tuple(one.pieces())  # built before the clock starts
    say("begins")
    ready = replace(one, pieces=lambda: pieces)
    say(msgspec.json.encode(asyncio.run(one.run(ready, target, one.many, seconds))).decode())


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> bool:
    parser = ArgumentParser(prog="python -m tests.hostile")
    parser.add_argument("only", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each attack")
    parser.add_argument("--attack", help="used by the program itself")
    parser.add_argument("--target", help="used by the program itself")
    inputs = parser.parse_args()
    if inputs.attack is not None:
        target = msgspec.json.decode(inputs.target, type=Target)
        attack_alone(inputs.attack, target, inputs.seconds)
        return True
    lines = []
    with tempfile.TemporaryDirectory(prefix="dualstream-hostile-") as folder:
        store = f"sqlite:///{Path(folder) / 'hostile.db'}"
        inputs = {"HOSTILE_TIMEOUT_S": str(TIMEOUT_S)}
        with ServerProcess(
            store, (), inputs, _on_core(0, []), module="tests.hostile.server"
        ) as server:
            httpx.put(f"{server.url}/models/m", json=SPEC, timeout=120).raise_for_status()
            host, _, port = server.url.removeprefix("http://").partition(":")
            target = Target(host, int(port), "m", TIMEOUT_S, TIMEOUT_S)
            asyncio.run(latencies_ms(target, 2.0))
            for name in inputs.only or ATTACKS:
                lines.append(measured(name, target, server, inputs.seconds))
                say(_row(lines[-1]))
    leak = measure()
    say(f"Welch's t of keys: {leak[0]:.2f}; of what leaks: {leak[1]:.0f}")
    if not inputs.only:
        record(TITLE, section(lines, leak))
    return all(line.outcome == "passed" for line in lines) and abs(leak[0]) < LEAK_T < leak[1]


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
