"""Models of the chaos tests and their requests, all derived from a seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from dualstream.service.cli.demo.adult import sample_of
from tests.adult import adult_lines

PORTFOLIO, DUAL, CLASSES = "portfolio", "dual", "classes"
Spec = dict[str, Any]
SPECS: dict[str, Spec] = {
    PORTFOLIO: {"algorithm": "portfolio", "features": {"kind": "hashed", "bits": 10}},
    DUAL: {
        "algorithm": "dual_ascent",
        "loss": "hinge",
        "features": {"kind": "indexed", "dim": 123},
    },
    CLASSES: {
        "algorithm": "dual_ascent",
        "task": "multiclass",
        "features": {"kind": "indexed", "dim": 123},
    },
}

NAMED = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}
SPARSE = {"algorithm": "rda", "features": {"kind": "indexed", "dim": 123}}
MANY: dict[str, Spec] = {
    f"{kind}-{number}": spec
    for kind, spec, count in (
        (DUAL, SPECS[DUAL], 8),
        ("named", NAMED, 6),
        ("sparse", SPARSE, 4),
        (CLASSES, SPECS[CLASSES], 1),
        (PORTFOLIO, SPECS[PORTFOLIO], 1),
    )
    for number in range(count)
}
"""Most learn while they are not in memory; those of classes and the portfolios do not."""

LONGEST = 20
"""Rows in a batch, at most."""
SHARED_IDS = 50
"""Rows that several clients send, under the same ids."""


@dataclass(frozen=True)
class Ask:
    """One learn request: its body, and the tags of its rows.

    key   of the request, or None; then each row has an id
    ids   of each row, None for a row without one
    """

    model: str
    body: dict[str, Any]
    key: str | None
    ids: list[str | None]

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"idempotency-key": self.key}

    @property
    def sent(self) -> dict[str, int]:
        """Number of rows under each tag of the history."""
        if self.key is not None:
            return {self.key: len(self.ids)}
        return {str(id_): 1 for id_ in self.ids}


def ask(chance: Random, client: int, number: int, specs: Mapping[str, Spec]) -> Ask:
    """A client's next request, to one of these models."""
    model = chance.choice(list(specs))
    count = 1 if chance.random() < 0.6 else chance.randint(2, LONGEST)
    tag = f"{client}-{number}"
    key = tag if chance.random() < 0.7 else None
    ids: list[str | None] = [None] * count
    rows = [chance.randrange(len(adult_lines())) for _ in ids]
    for index in range(count):
        if key is None or chance.random() < 0.2:
            ids[index] = f"{tag}-{index}"
    if key is None and chance.random() < 0.5:
        # A row that other clients send, too.
        shared = chance.randrange(SHARED_IDS)
        ids[0], rows[0] = f"shared-{shared}", shared
    samples = [_sample(specs[model], row, id_) for row, id_ in zip(rows, ids, strict=True)]
    body = samples[0] if count == 1 and chance.random() < 0.9 else {"samples": samples}
    return Ask(model, body, key, ids)


def has_names(spec: Spec) -> bool:
    """Do its rows have named features?"""
    return bool(spec["features"]["kind"] == "hashed")


def _sample(spec: Spec, row: int, id_: str | None) -> dict[str, Any]:
    sample = sample_of(adult_lines()[row]) if has_names(spec) else _indexed(adult_lines()[row])
    if spec.get("task") == "multiclass":
        # The parity of the first features splits each class in two.
        odd = sum(int(index) < 20 for index in sample["x"]) % 2
        sample["y"] = f"{'high' if sample['y'] > 0 else 'low'} {odd}"
    return sample if id_ is None else sample | {"id": id_}


def _indexed(line: bytes) -> dict[str, Any]:
    label, *pairs = line.decode().split()
    return {"x": {pair.partition(":")[0]: 1.0 for pair in pairs}, "y": int(label)}
