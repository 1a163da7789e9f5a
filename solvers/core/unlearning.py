"""Which models can unlearn a row, and what those that can promise.

A row can be taken out where a learner keeps what the row has put in: its dual variable and, behind
the stages, the row itself. Where anything else has learned from the rows (statistics of a stage,
the shares of members), taking it out of the weights would leave it there.
"""

from collections.abc import Mapping
from typing import Any, Protocol, cast

from dualstream.solvers.core.learner import Learner
from dualstream.solvers.core.spec_cache import worked_out_once


class Unlearner(Learner, Protocol):
    """A learner that retains rows and can unlearn any of these."""

    @property
    def retained(self) -> int:
        """How many rows are retained: the last ones learned of a weight above 0."""

    def unlearn(self, age: int) -> None:
        """Unlearn the row that came `age` rows before the newest retained one; averages restart.

        What is left is the problem without the row: its dual variable is 0, it is not among the
        retained rows, Delta is that of the others; these keep their weight, and the dual variables
        that were chosen while the row was there. Raises ValueError where no such row is retained;
        UnlearningError where a number would not be finite, and then nothing has changed.
        """


@worked_out_once
def why_not_unlearn(spec: Mapping[str, Any]) -> str | None:
    """Why the model of a resolved specification cannot unlearn a row; None where it can."""
    algorithm = spec["algorithm"]
    if algorithm == "portfolio":
        return (
            "the shares of a portfolio's members come from the losses of all rows, "
            "and what a single row did to them is not kept"
        )
    if algorithm == "semiparametric":
        return "a semiparametric model serves rows of its window, solved for all of them at once"
    if algorithm != "dual_ascent":
        return f"{algorithm} keeps no dual variables, so what a single row did is not kept"
    if spec["scaling"] != "none":
        return (
            "scaling 'balanced' has statistics of all rows, and what a single row did is not kept"
        )
    if spec["map"] is not None and spec["map"]["kind"] == "nystroem":
        return "the map 'nystroem' is made of rows"
    if spec["norm"] == "running":
        return "norm 'running' has statistics of all rows, and what a single row did is not kept"
    return None


def unlearner(learner: Learner) -> Unlearner:
    """The learner of a specification that `why_not_unlearn` finds nothing against."""
    return cast(Unlearner, learner)
