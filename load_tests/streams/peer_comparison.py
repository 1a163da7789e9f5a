"""Figures of the peers of the comparison, in comparison.json.

`python -m load_tests.streams.peer_comparison [peer ...]` measures those of some peers, or all.
A figure is measured if the file does not have it. Delete a peer's figures there after a change of
its options, and all of them on another machine, as times are compared. MOA needs MOA_JAR. The file
has the figures of our models, too, which `python -m load_tests.streams` measures.
"""

import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import sklearn

from dualstream.solvers import Batch
from load_tests.measure import machines
from load_tests.records import moa
from load_tests.streams import compared
from load_tests.streams.data import digest
from load_tests.streams.figures import BLOCK, Figures

KEPT = Path(__file__).with_name("comparison.json")
PACKAGES = ("lightgbm", "vowpalwabbit", "river", "scikit-learn", "numpy")
SECONDS = 120.0
"""CPU seconds after which a peer is stopped on a stream."""

Results = dict[str, dict[str, Figures]]
"""Stream -> peer -> figures."""


@dataclass(frozen=True)
class Kept:
    """Contents of comparison.json."""

    versions: Mapping[str, str]
    machine: str
    """Of the peers' figures."""
    ours: Mapping[str, str]
    """Numeric identity and machine of our models' figures."""
    digests: Mapping[str, str]
    """Of the rows of each stream."""
    figures: Results


def kept() -> Kept:
    stored = json.loads(KEPT.read_text())
    figures = {
        stream: {peer: Figures.read(one) for peer, one in peers.items()}
        for stream, peers in stored["figures"].items()
    }
    return Kept(**stored | {"figures": figures})


def measure(peers: Iterable[str] = compared.ORDER) -> None:
    """Measure the peers' figures that comparison.json lacks; write it after each of them.

    Figures of a stream whose rows have changed are measured again. The streams with the fewest
    entries come first, so that a run that is interrupted has many.
    """
    before = kept()
    batches = {name: read() for name, read in compared.all_streams().items()}
    digests = {name: digest(batch) for name, batch in batches.items()}
    figures = {
        name: before.figures.get(name, {}) if before.digests.get(name) == digests[name] else {}
        for name in batches
    }
    versions = {package: version(package) for package in PACKAGES} | moa.VERSION
    now = Kept(versions, machines(before.machine), before.ours, digests, figures)
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        for peer in peers:
            for name, batch in sorted(batches.items(), key=lambda item: item[1].nnz):
                if peer in compared.peers_of(name, batch.dim) and peer not in figures[name]:
                    figures[name][peer] = run(peer, batch)
                    print(name, peer, figures[name][peer], flush=True)
                    write(now)


def run(peer: str, batch: Batch, seconds: float = SECONDS) -> Figures:
    """Figures of a peer on the rows that it scores in this CPU time; whole blocks."""
    if peer in moa.LEARNERS:
        scores, used = moa.scores(peer, batch, seconds)
        rows = len(scores) if len(scores) == len(batch) else len(scores) // BLOCK * BLOCK
        return Figures.of(scores[:rows], batch.labels[:rows], used * rows / len(scores))
    began = time.process_time()
    parts = []
    rows = 0
    for scores in compared.pieces_of(peer)(batch):
        parts.append(scores)
        rows += len(scores)
        if rows % BLOCK == 0 and time.process_time() - began > seconds:
            break
    return Figures.of(np.concatenate(parts), batch.labels[:rows], time.process_time() - began)


def write(kept: Kept) -> None:
    head = {name: value for name, value in vars(kept).items() if name != "figures"}
    lines = [f"{json.dumps(name)}: {{\n{_body(one)}\n}}" for name, one in kept.figures.items()]
    text = ",\n".join(lines)
    KEPT.write_text(f'{json.dumps(head)[:-1]},\n"figures": {{\n{text}\n}}}}\n')


def _body(peers: Mapping[str, Figures]) -> str:
    return ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(asdict(one), separators=(',', ':'))}"
        for name, one in peers.items()
    )


if __name__ == "__main__":
    measure(sys.argv[1:] or compared.ORDER)
