"""Streams and peers of the comparison of all models; no stream has more than 20,000 rows."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType

import numpy as np
from river import ensemble, forest, tree

from dualstream.solvers import Batch
from dualstream.solvers.jit import Floats
from load_tests.paper_tables import data
from load_tests.records import moa
from load_tests.streams.cases import PROTOCOL, turned
from load_tests.streams.figures import BLOCK
from load_tests.streams.generators import GENERATORS, ROWS, as_numbers
from load_tests.streams.held_out import svmguide1
from load_tests.streams.peers import LOGISTIC, PEERS, WIDE, VowpalWabbit, log_odds
from load_tests.streams.prequential import Peer
from load_tests.streams.retrained import lightgbm_trees, rolling

RARE = 0.01
"""Share of positives in thinned streams."""

Pieces = Callable[[Batch], Iterator[Floats]]
"""Scores of consecutive rows, each from before its row was learned, in arrays."""


def thinned(rows: Batch) -> Batch:
    """The rows with positives thinned to RARE by a seeded draw, in the same order."""
    positive = np.flatnonzero(rows.labels > 0.0)
    negative = np.flatnonzero(rows.labels <= 0.0)
    count = round(len(negative) * RARE / (1.0 - RARE))
    drawn = np.random.default_rng(0).choice(positive, count, replace=False)
    return rows.take(np.sort(np.concatenate([negative, drawn])))


STREAMS: Mapping[str, Callable[[], Batch]] = MappingProxyType(
    {
        **{name: lambda read=case.read: read()[:ROWS] for name, case in PROTOCOL.items()},
        "svmguide1, shuffled": lambda: svmguide1(True),
        **{
            name: lambda samples=samples: as_numbers(samples())
            for name, samples in GENERATORS.items()
        },
    }
)
THINNED: Mapping[str, Callable[[], Batch]] = MappingProxyType(
    {
        f"{name}, 1 % positives": lambda read=PROTOCOL[name].read: thinned(read())[:ROWS]
        for name in ("ijcnn1", "a9a")
    }
)
FLIPPED: Mapping[str, Callable[[], Batch]] = MappingProxyType(
    {
        f"{name}, flipped": lambda read=STREAMS[name]: turned(read(), BLOCK)
        for name in ("ijcnn1", "phishing")
    }
)


def all_streams() -> Mapping[str, Callable[[], Batch]]:
    return {**STREAMS, **FLIPPED, **THINNED}


class RiverTree(Peer):
    """A tree or a forest of River on unscaled rows."""

    def __init__(self, model: Callable[[], object], batch: Batch) -> None:
        self._model = model()
        self._rows = data.dense(batch)
        self._labels = batch.labels

    def score(self, row: int) -> float:
        return log_odds(share_of_true(self._model.predict_proba_one(self._sample(row))))

    def learn(self, row: int) -> None:
        self._model.learn_one(self._sample(row), bool(self._labels[row] > 0.0))

    def _sample(self, row: int) -> dict[int, float]:
        return dict(enumerate(self._rows[row].tolist()))


def share_of_true(votes: Mapping[bool, float]) -> float:
    """Probability of True. A class that no tree has seen is missing; 1/2 without votes."""
    total = sum(votes.values())
    return votes.get(True, 0.0) / total if total > 0.0 else 0.5


def by_rows(peer: Callable[[Batch], Peer], batch: Batch) -> Iterator[Floats]:
    learner = peer(batch)
    for start in range(0, len(batch), BLOCK):
        end = min(start + BLOCK, len(batch))
        yield np.array([learner.take(row) for row in range(start, end)])


def _vw(options: str) -> Pieces:
    return partial(by_rows, partial(VowpalWabbit, f"{LOGISTIC} {options}"))


def _tree(model: Callable[[], object]) -> Pieces:
    return partial(by_rows, partial(RiverTree, model))


FAMILIES: Mapping[str, Mapping[str, Pieces]] = MappingProxyType(
    {
        "LightGBM": {
            "lightgbm": partial(rolling, lightgbm_trees, None),
            "lightgbm_5000": partial(rolling, lightgbm_trees, 5000),
        },
        "Vowpal Wabbit": {
            "vw": partial(by_rows, PEERS["vw"]),
            "vw_coin": partial(by_rows, PEERS["vw_coin"]),
            "vw_hinge": partial(by_rows, PEERS["vw_hinge"]),
            "vw_q": _vw("-q ::"),
            "vw_nn": _vw("--nn 10"),
            "vw_boosting": _vw("--boosting 10"),
        },
        "River, trees": {
            "river_hat": _tree(lambda: tree.HoeffdingAdaptiveTreeClassifier(seed=1)),
            "river_amf": _tree(lambda: forest.AMFClassifier(n_estimators=10, seed=1)),
            "river_arf": _tree(lambda: forest.ARFClassifier(n_models=10, seed=1)),
            "river_srp": _tree(lambda: ensemble.SRPClassifier(n_models=10, seed=1)),
        },
        "MOA": {"moa_srp_10": lambda batch: iter([moa.scores("moa_srp_10", batch)[0]])},
        "linear": {
            "river_lr": partial(by_rows, PEERS["river_lr"]),
            "river_pa": partial(by_rows, PEERS["river_pa"]),
            "sk_hinge_noscale": partial(by_rows, PEERS["sk_hinge_noscale"]),
        },
    }
)
ORDER = (
    "lightgbm", "lightgbm_5000", "vw", "vw_q", "vw_nn", "vw_boosting", "river_hat", "vw_coin",
    "vw_hinge", "river_lr", "river_pa", "sk_hinge_noscale", "river_amf", "river_arf", "river_srp",
    "moa_srp_10",
)  # fmt: skip
"""All peers in the order in which they are run: the slowest last."""
NOT_WIDE = (*FAMILIES["River, trees"], *FAMILIES["MOA"])
"""Peers that do not run on streams of more than WIDE columns."""
ONLY_WIDE = ("sk_hinge_noscale",)
"""A peer that is good on words only, and slow."""
FEW = ("lightgbm", "lightgbm_5000", "vw", "river_arf")
"""Peers on the thinned and the flipped streams."""


def peers_of(stream: str, columns: int) -> tuple[str, ...]:
    """The peers that run on a stream of the comparison."""
    out = NOT_WIDE if columns > WIDE else ONLY_WIDE
    named = ORDER if stream in STREAMS else FEW
    return tuple(name for name in named if name not in out)


def pieces_of(peer: str) -> Pieces:
    return next(family[peer] for family in FAMILIES.values() if peer in family)
