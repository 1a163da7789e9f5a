"""Our learners: the portfolios, each member of `ten` alone, and rejected lists of members.

None is tuned: one specification for all streams.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dualstream.solvers import Batch, Learner, make_learner
from dualstream.solvers.portfolio.presets import TEN, Member
from load_tests.regression.runs import Errors

Spec = dict[str, Any]

_BY_NAME = {member["name"]: member for member in TEN}
NAMES = tuple(_BY_NAME)
_NEWTONS = tuple(name for name in NAMES if name.startswith("newton"))
_ON_LAST = tuple(name for name in NAMES if name.startswith("last-"))
_HUBER = {"kind": "huber", "delta": 1.0}
_STANDARD = {"kind": "balanced", "power": 0.0}


def _spec(members: str | Sequence[Member] = "ten", **fields: Any) -> Spec:
    listed = members if isinstance(members, str) else list(members)
    return {"algorithm": "portfolio", "task": "regression", "members": listed} | fields


def _without(*names: str) -> list[Member]:
    return [member for member in TEN if member["name"] not in names]


def _all_with(**fields: Any) -> list[Member]:
    """The list with these fields in every member that learns."""
    return [member if member["kind"] == "prior" else {**member, **fields} for member in TEN]


def _dual(norm: str, strength: float, loss: Any) -> Member:
    return {
        "kind": "dual_ascent",
        "name": f"other-{norm}-{strength:g}",
        "strength": strength,
        "norm": norm,
        "loss": loss,
    }


def _adagrad(scaling: Any, norm: str, eta: float) -> Member:
    name = f"adagrad-{norm}"
    fields = {"eta": eta, "scaling": scaling, "norm": norm, "loss": _HUBER}
    return {"kind": "adagrad", "name": name} | fields


CHOSEN = _spec()
FULL = _spec("full")
ALONE: Mapping[str, Spec] = {name: _spec([_BY_NAME[name]]) for name in NAMES}
WITHOUT: Mapping[str, Spec] = {name: _spec(_without(name)) for name in NAMES}
OTHERS: Mapping[str, Spec] = {
    "`full`": FULL,
    "uniform average": _spec(eta=1e-6, share=0.5),
    "`eta` 1/16": _spec(eta=1 / 16),
    "`eta` 1/4": _spec(eta=1 / 4),
    "`eta` 1/2": _spec(eta=1 / 2),
    "`share` 0.0001": _spec(share=1e-4),
    "`share` 0.01": _spec(share=1e-2),
    "squared loss in all": _spec(_all_with(loss="squared")),
    "Huber loss in all": _spec(_all_with(loss=_HUBER)),
    "all correct the last target": _spec(_all_with(base="last")),
    "none learns from the last target": _spec(_without(*_ON_LAST)),
    "none knows the last target": _spec(_without("last", *_ON_LAST)),
    "`newton-0.99` with gamma 0.995": _spec(
        [{**m, "gamma": 0.995} if m["name"] == "newton-0.99" else m for m in TEN]
    ),
    "no diagonal Newton": _spec(_without(*_NEWTONS)),
    "three more of O-DCA for diagonal Newton": _spec(
        [
            *_without(*_NEWTONS),
            _dual("none", 30.0, _HUBER),
            _dual("none", 10.0, "squared"),
            _dual("row", 10.0, _HUBER),
        ]
    ),
    "three of AdaGrad for diagonal Newton": _spec(
        [
            *_without(*_NEWTONS),
            _adagrad("balanced", "none", 0.1),
            _adagrad(_STANDARD, "running", 0.3),
            _adagrad(_STANDARD, "row", 0.3),
        ]
    ),
}


def learned(spec: Spec, batch: Batch) -> tuple[Errors, Learner]:
    """The learner's errors on the rows, and the learner. A batch is learned row by row."""
    learner = make_learner({**spec, "features": {"kind": "indexed", "dim": batch.dim}})
    return Errors.of(learner.learn(batch).scores, batch.labels), learner


def shares(learner: Any) -> dict[str, float]:
    """Member -> its weight in the next prediction."""
    return {view.name: view.weight for view in learner.members()}
