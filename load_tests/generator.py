"""Open-loop load generator in a process of its own.

It runs with SCHED_FIFO, or else with the highest niceness that is allowed, so that other processes
of its core do not delay it. It sleeps until a request is due or answered: the kernel throttles a
real-time process that spins.
"""

import os
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import msgspec

from load_tests.open_loop import Drive, drive, get, post

ROOT = Path(__file__).parent.parent


class Order(msgspec.Struct):
    """Requests to send: one line of the file in each, and a probe sent at the same time.

    targets a file with the target of each request, in place of one target for all
    """

    url: str
    target: str
    bodies: Path
    rate: float
    seconds: float
    connections: int
    core: int
    may_refuse: bool = False
    probe: str | None = None
    targets: Path | None = None


class Done(msgspec.Struct):
    """Results of a run, and the priority of the generator."""

    urgency: str
    drive: Drive


def drive_apart(order: Order) -> Done:
    """Drive from a new process. Raises RuntimeError with the process's error output."""
    ran = subprocess.run(
        [sys.executable, "-m", "load_tests.generator"],
        input=msgspec.json.encode(order, enc_hook=str),
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(ran.stderr.decode())
    return msgspec.json.decode(ran.stdout, type=Done)


def be_urgent() -> str:
    """Take the highest allowed priority; returns its name."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        try:
            return f"niceness {os.nice(-20)}"
        except OSError:
            return "no priority"
    return "SCHED_FIFO"


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order, dec_hook=lambda of, v: of(v))
    bodies = order.bodies.read_bytes().splitlines()
    if order.targets is None:
        requests = [post(order.target, body) for body in bodies]
    else:
        targets = order.targets.read_text().splitlines()
        requests = list(map(post, targets, cycle(bodies)))
    os.sched_setaffinity(0, {order.core})
    urgency = be_urgent()
    result = drive(
        order.url,
        requests,
        order.rate,
        order.seconds,
        order.connections,
        order.may_refuse,
        None if order.probe is None else get(order.probe),
    )
    sys.stdout.buffer.write(msgspec.json.encode(Done(urgency, result)))


if __name__ == "__main__":
    main()
