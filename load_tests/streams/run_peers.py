"""Run the peers and write peers.json.

Runs with the same rows and packages come from .cache/streams. Empty this folder after a change of a
peer's options.
"""

import json
from dataclasses import asdict
from typing import Any

import sklearn

from dualstream.solvers import Batch
from load_tests.markdown import ROOT
from load_tests.streams.cases import Case, all_cases, block_of
from load_tests.streams.data import digest
from load_tests.streams.peer_figures import KEPT
from load_tests.streams.peers import PEERS, versions
from load_tests.streams.prequential import scores
from load_tests.streams.runs import Run

CACHE = ROOT / ".cache" / "streams"


def measure() -> None:
    """Run all peers on all cases, except those in the cache, and write peers.json."""
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        runs = {case.name: of_case(case) for case in all_cases()}
    lines = [f"{json.dumps(name)}: {{\n{body(peers)}\n}}" for name, peers in runs.items()]
    text = ",\n".join(lines)
    KEPT.write_text(f'{{"versions": {json.dumps(versions())},\n"runs": {{\n{text}\n}}}}\n')


def body(peers: dict[str, dict[str, Any]]) -> str:
    return ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(run, separators=(',', ':'))}"
        for name, run in peers.items()
    )


def of_case(case: Case) -> dict[str, dict[str, Any]]:
    batch = case.read()
    return {peer: of_peer(case, peer, batch) for peer in case.peers or PEERS}


def of_peer(case: Case, peer: str, batch: Batch) -> dict[str, Any]:
    """A peer's run, from the cache if possible."""
    path = CACHE / f"{peer}-{fingerprint(case, batch)}.json"
    if not path.exists():
        print(f"{case.name}: {peer}", flush=True)
        predictions = scores(PEERS[peer](batch), len(batch), case.delay)
        run = Run.of(predictions, batch.labels, block_of(case, len(batch)))
        CACHE.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(run)))
    return json.loads(path.read_text())


def fingerprint(case: Case, batch: Batch) -> str:
    """Digest of the rows, the protocol and the peers' packages."""
    protocol = (case.delay, block_of(case, len(batch)), versions())
    return digest(batch, repr(protocol).encode())
