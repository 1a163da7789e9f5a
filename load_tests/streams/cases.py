"""Cases: streams as they are, with labels inverted half-way, and with late labels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from dualstream.solvers import Batch
from dualstream.solvers.jit import Floats
from load_tests.streams import held_out
from load_tests.streams.data import FILES, libsvm as file, shuffled, stream

FEW = ("vw", "vw_coin", "river_lr", "river_pa")
"""Peers for the cases that do not run all of them."""
NEWEST_LABEL = "last known label"
DELAYS = (0, 100, 1000)
LATEST = max(DELAYS)
TURN_BLOCK = 10


@dataclass(frozen=True)
class Case:
    """A stream under one protocol."""

    name: str
    read: Callable[[], Batch]
    delay: int = 0
    """Rows between a row's score and its label."""
    block: int = 0
    """Rows of a block of mistakes; 0: a fiftieth of the stream."""
    peers: tuple[str, ...] = ()
    """Peers to run; empty: all."""


def turned(rows: Batch, block: int = TURN_BLOCK) -> Batch:
    """The rows with labels inverted from the middle on."""
    labels = rows.labels.copy()
    labels[turn(len(rows), block) :] *= -1.0
    return rows.with_labels(labels)


def turn(rows: int, block: int = TURN_BLOCK) -> int:
    """The first row whose label is inverted, a multiple of `block`."""
    return rows // 2 // block * block


def late(name: str, delay: int) -> Case:
    label = f"{name}, {delay} rows late"
    return Case(label, partial(stream, name), delay=delay, block=LATEST, peers=FEW)


PROTOCOL: Mapping[str, Case] = {name: Case(name, partial(stream, name)) for name in FILES}
HELD_OUT: Mapping[str, Case] = {
    name: Case(name, read)
    for name, read in (*held_out.REAL.items(), *held_out.ORDERS.items(), *held_out.MADE.items())
}
TURNED: Mapping[str, Case] = {
    "a9a": Case("a9a, turned", lambda: turned(stream("a9a")), block=TURN_BLOCK, peers=FEW),
    "w1a": Case("w1a, turned", lambda: turned(shuffled(file("w1a"))), block=TURN_BLOCK, peers=FEW),
}
LATE: Mapping[tuple[str, int], Case] = {
    (name, delay): late(name, delay) for name in ("elec2", "a9a") for delay in DELAYS
}


def all_cases() -> list[Case]:
    """All cases, the quick ones first."""
    parts = (TURNED, LATE, PROTOCOL, HELD_OUT)
    return [case for part in parts for case in part.values()]


def block_of(case: Case, rows: int) -> int:
    return case.block or -(-rows // 50)


def last_label(rows: Batch) -> float:
    """Percent of mistakes, from row 2 on, of the predictor that repeats the last label."""
    return 100.0 * float((rows.labels[1:] != rows.labels[:-1]).mean())


def newest_labels(labels: Floats, delay: int) -> Floats:
    """The last label that is known when each row arrives, 0 before the first one.

    The label of a row is known after the row that arrives `delay` rows later is scored.
    """
    return np.concatenate([np.zeros(delay + 1), labels[: -delay - 1]])


def kappa_temporal(errors: float, errors_of_last: float) -> float:
    """1 without an error, 0 for a learner that errs as often as the last label.

    Bifet, Read, Zliobaite, Pfahringer and Holmes (2013); Zliobaite et al. (2015).
    """
    return 1.0 - errors / errors_of_last
