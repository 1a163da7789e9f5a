"""The peers' figures: of peers.json, and of the reference, tests/golden/streams.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from load_tests.markdown import ROOT
from load_tests.streams.runs import Run

KEPT = Path(__file__).with_name("peers.json")
GOLDEN = ROOT / "tests" / "golden" / "streams.json"

Runs = Mapping[str, Mapping[str, Run]]


def kept() -> tuple[dict[str, str], Runs]:
    """Versions of the peers' packages, and their runs by case name."""
    stored = json.loads(KEPT.read_text())
    runs = {
        case: {peer: as_run(run) for peer, run in peers.items()}
        for case, peers in stored["runs"].items()
    }
    return stored["versions"], runs


def as_run(fields: dict[str, Any]) -> Run:
    return Run(**fields | {"counts": tuple(fields["counts"])})


def reference() -> dict[str, Any]:
    """The reference's figures for each of its streams."""
    return json.loads(GOLDEN.read_text())["streams"]
