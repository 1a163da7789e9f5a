"""Models out of memory of which the weights are kept: enough to learn a row and to say its score.

A model in memory takes some hundred kilobytes, most of it retained rows and metrics, and to make
those anew from its journal takes a hundred times as long as to learn a row. Who only sends it rows,
now and then, asks for none of them. So of a model that leaves, what its learner takes to go on is
kept, and rows are learned by that: bit for bit as by the whole model, which the journal has.
"""

from typing import Any

import msgspec

from service.trail import Trail
from solvers import BareLearner

MOST_GROUPS = 24
"""So many a model learns bare before it comes into memory whole.

That takes as long as ten, so eight would do for one that goes on. But most do not, and another one
has to leave for each: of 10,000 models by a Zipf law 2.4 % of the requests loaded one then."""


class Bare(msgspec.Struct, frozen=True, gc=False):
    """What is kept of such a model.

    seq, chain  where it stands in the journal
    trail       where it has come by
    groups      how many it has learned since it left memory
    """

    learner: BareLearner
    seq: int
    chain: str
    trail: Trail
    groups: int = 0


class Nothing:
    """In the place of the parts that a bare replica does not have: it keeps and counts nothing."""

    __slots__ = ()
    why_not = "a bare replica retains no rows"
    unlearned_seq = 0

    def keep(self, *told: object) -> None:
        pass

    def count(self, *told: object) -> None:
        pass


NOTHING: Any = Nothing()
