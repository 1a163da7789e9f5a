"""The models, rows and controls that schedules are made of; encoded once, used by all of them.

The first number of a row tells which request brought it: `tags_of` finds it in the journal.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from dualstream.service.codecs import ListedRows
from dualstream.service.features.members.controls import Demote, MemberAdd, MemberRemove, Promote
from dualstream.service.features.unlearning.controls import Unlearn
from dualstream.service.features.unlearning.state import digest_of
from dualstream.service.journal.protocol import PartPosition
from dualstream.service.journal.record import KeyKind, Rows, make_key
from dualstream.service.replica.controls import Order
from dualstream.service.replica.requests import ControlRequest, Receipt, Request
from dualstream.service.replica.spec import canonical
from dualstream.solvers import Batch, make_learner, resolve_spec
from dualstream.solvers.evaluation.late_label_scores import AsServed
from dualstream.solvers.history.spec import column_names
from dualstream.solvers.protocols.member_learner import member_learner
from dualstream.solvers.protocols.unlearner import why_not_unlearn
from dualstream.solvers.rows.columns.inputs import row_width
from dualstream.solvers.rows.hashing import hash_names

DIM = 3
BITS = 10
SCALE = 16.0
SIZES = (1, 2, 1, 3, 1, 2, 12, 1, 5)
FEATURES = {"kind": "indexed", "dim": DIM}
MEMBERS = [{"name": "a", "algorithm": "perceptron"}, {"name": "b", "algorithm": "ogd"}]
PAIR = {"algorithm": "portfolio", "features": FEATURES, "members": MEMBERS, "retain": 4}
STEPS = {"algorithm": "sgd", "features": FEATURES}
DUALS = {"algorithm": "dual_ascent", "loss": "hinge", "features": FEATURES, "retain": 6}
TOL = 0.5
"""Refits are there to enter, and not to be near the optimum, which takes long."""
REFITTED = DUALS | {"refit": {"every": 100, "tol": TOL}}
WEIGHTS = STEPS | {"refit": {"every": 100, "tol": TOL, "rows": 8}}
EVERY = 6
"""Samples after which it is refitted by itself: fewer than a spec may ask for."""
MISTAKES = {"algorithm": "perceptron", "features": FEATURES}
ALARM = {"mode": "pause", "loss": 1.0, "norm": 1.0, "deviations": 0.0}
ALARM |= {"every": 1, "patience": 1, "after": 2, "history": 4}
"""It trips over nearly nothing."""
GUARDED = STEPS | {"guard": ALARM}
PATIENT = STEPS | {"guard": ALARM | {"patience": 6}}
"""Wrong data lasts so long that snapshots are written during it."""
REMEMBERED = {
    "algorithm": "sgd",
    "features": {"kind": "hashed", "bits": BITS},
    "columns": {"types": {"at": "time", "card": "ignore", "amount": "number"}},
    "history": [
        {
            "by": "card",
            "time": "at",
            "of": "amount",
            "stats": ["count", "mean", "since", "label_mean"],
            "half_life": "1m",
            "labels": 2,
            "keys": 1000,
        }
    ],
}
"""The inputs of its rows are one of three keys, a time, and the tag as a value."""


class Kind:
    """A model that schedules use: its spec, resolved and as bytes; whether its rows have ids."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.resolved = resolve_spec(given)
        self.is_refitted = "refit" in given
        self.is_guarded = "guard" in given
        if self.is_refitted:
            self.resolved["refit"]["every"] = EVERY
            for spec in (given, self.resolved):
                for order in (None, "sorted"):
                    _OF_KINDS[msgspec.json.encode(spec, order=order)] = self.resolved
        self.spec, self.as_given = canonical(self.resolved), canonical(given)
        self.orders: Sequence[Order] = (Demote(), Promote("a"))
        self.width = row_width(self.resolved)
        self.has_history = bool(self.resolved.get("history"))
        names = column_names(self.resolved.get("history") or (), "binary")
        indices = hash_names(names, BITS).tolist() if names else ()
        self.history_names = list(zip(indices, names, strict=True))
        self.names_rows = self.has_history
        if why_not_unlearn(self.resolved) is None:
            self.names_rows = True
            self.orders = [unlearning(tag) for tag in range(1, 9)]
        self.as_served = AsServed(self.resolved)
        learner = member_learner(make_learner(given))
        if learner is not None:
            added = learner.resolve_member({"algorithm": "perceptron"})
            self.orders = (
                MemberAdd(added, "c"),
                MemberAdd(added),
                MemberRemove("b"),
                MemberRemove("c"),
                Promote("a"),
                Promote("c"),
                Demote(),
            )


_OF_KINDS: dict[bytes, dict[str, Any]] = {}
"""Resolved specs that say what no given one may."""


@lru_cache
def kinds() -> tuple[Kind, ...]:
    """Those with members are the slowest, and those with refits take the most steps.

    The last one has a history: chance does not choose it.
    """
    steps, mistakes, guarded, duals = map(Kind, (STEPS, MISTAKES, GUARDED, DUALS))
    others = map(Kind, (PAIR, REFITTED, WEIGHTS, PATIENT, REMEMBERED))
    return (steps, steps, mistakes, mistakes, guarded, duals, duals, *others)


@lru_cache
def _resolved(spec: bytes) -> dict[str, Any]:
    return _OF_KINDS.get(spec) or resolve_spec(msgspec.json.decode(spec))


def resolved_once(spec: Any) -> dict[str, Any]:
    """What `resolve_spec` makes of the spec of a model or a member."""
    return dict(_resolved(msgspec.json.encode(spec)))


def size_of(tag: int) -> int:
    """How many rows the request of this tag brings."""
    return SIZES[tag % len(SIZES)]


@lru_cache(10_000)
def rows_of(tag: int) -> Batch:
    """The rows of the request of this tag."""
    count = size_of(tag)
    x = np.random.default_rng(tag).standard_normal((count, DIM)).round(3)
    x[:, 0] = tag / SCALE
    return Batch.from_dense(x, np.where(x[:, 1] > x[:, 2], 1.0, -1.0))


@lru_cache(10_000)
def learn_request(tag: int, key: str | None) -> Request:
    """The fingerprint is the tag's: the same key under another tag is a conflict."""
    if key is None:
        return Request.of(rows_of(tag), None, None)
    return Request.of(rows_of(tag), make_key(KeyKind.REQUEST, key), tag.to_bytes(16, "big"))


@lru_cache(10_000)
def named_row(tag: int, width: int = DIM) -> ListedRows:
    """The first row of the tag, with an id, which makes repeating harmless."""
    row = rows_of(tag)[:1]
    indices, values = row.indices.tolist(), row.values.tolist()
    if width > DIM:
        indices += [width - 3, width - 2, width - 1]
        values += _inputs_of(tag)
    columns = [0, len(indices)], indices, values, row.labels.tolist()
    return ListedRows(*columns, [1.0], width, ids={0: str(tag)})


def _inputs_of(tag: int) -> list[float]:
    """Every fifth row is older than the one before it."""
    return [1.0 + tag % 3, 1e9 + 10 * tag - (15 if tag % 5 == 0 else 0), tag / SCALE]


@lru_cache(10_000)
def named_request(tag: int, width: int = DIM) -> Request:
    """Of this row, with its label."""
    return Request.of(named_row(tag, width), None, None)


@lru_cache(10_000)
def observed_request(tag: int, width: int) -> Request:
    """The inputs of this row, without its label; with an id."""
    indices, no_label = [width - 3, width - 2, width - 1], [Batch.UNLABELLED]
    columns = [0, 3], indices, _inputs_of(tag), no_label, [0.0]
    listed = ListedRows(*columns, width, ids={0: str(tag)})
    return Request.of(listed, None, None)


@lru_cache(10_000)
def whole_request(tag: int, known: int) -> Request:
    """Two rows of this tag, whole or none; the second one has the id of another tag's row."""
    rows = rows_of(tag)
    columns = rows.indptr.tolist(), rows.indices.tolist(), rows.values.tolist()
    ids = {1: str(known)}
    listed = ListedRows(*columns, rows.labels.tolist(), [1.0] * len(rows), DIM, ids=ids)
    return Request.of(listed, None, None, is_whole=True)


def label_of(tag: int) -> float:
    """Of the first row of the tag."""
    return float(rows_of(tag).labels[0])


def default_of(tag: int) -> float:
    """The label that this row has where no other comes: the other one, so that it is seen."""
    return -label_of(tag)


def place_of(receipt: Receipt) -> PartPosition:
    """Where the rows of a request stand, or the only one, where its id was known."""
    for _, seq in receipt.duplicates:
        return PartPosition(seq, seq, 1, duplicate=True)
    return receipt.position


def unlearning(tag: int) -> Unlearn:
    """The order to unlearn the row of `named_request`."""
    return Unlearn(digest_of(make_key(KeyKind.SAMPLE, str(tag))).hex())


@lru_cache(10_000)
def control_request(kind: int, order: int, key: str | None) -> ControlRequest:
    stored = None if key is None else make_key(KeyKind.REQUEST, key)
    return ControlRequest.of(kinds()[kind].orders[order], stored)


def tags_of(rows: Rows) -> list[int]:
    """The tag of each row; that of an observed row is negative."""
    assert rows.values is not None
    if rows.labels is None:
        return (rows.values[rows.indptr[1:] - 1] * -SCALE).astype(int).tolist()
    return (rows.values[rows.indptr[:-1]] * SCALE).astype(int).tolist()


@lru_cache
def asked_rows(width: int = DIM) -> tuple[Batch, ...]:
    """What predictions are asked for."""
    x = np.random.default_rng(1).standard_normal((3, 2, DIM))
    if width > DIM:
        inputs = np.array([[_inputs_of(tag) for tag in (7 * n, 7 * n + 1)] for n in range(1, 4)])
        x = np.concatenate((x, np.zeros((3, 2, width - 2 * DIM)), inputs), axis=2)
    return tuple(Batch.from_dense(rows, np.ones(2)) for rows in x)
