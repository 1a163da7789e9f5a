"""Unlearner: the protocol of learners that can unlearn a retained row.

A learner can unlearn a row if it keeps the row's contribution: its dual variable and, after the
stages, the row itself. If anything else has learned from the row (statistics of a stage, shares of
members), removing it from the weights would leave it there.
"""

from collections.abc import Mapping
from typing import Any, Protocol, cast

from dualstream.solvers.protocols.learner import Learner
from dualstream.solvers.rows.columns.spec import age_features
from dualstream.solvers.spec_cache import derived_once


class Unlearner(Learner, Protocol):
    """A learner that can unlearn any of its retained rows."""

    @property
    def retained(self) -> int:
        """Number of retained rows: the last learned rows of a weight above 0."""

    def unlearn(self, age: int) -> None:
        """Unlearn the row that was learned `age` rows before the newest retained one; averages
        restart.

        The result is the problem without the row: its dual variable is 0, it is not retained, and
        Delta is the sum over the others. The others keep their weights and the dual variables
        chosen while the row was there. Raises ValueError if there is no such row; UnlearningError
        if a number would not be finite, and then nothing has changed.
        """


@derived_once
def why_not_unlearn(spec: Mapping[str, Any]) -> str | None:
    """Why a model of this resolved specification cannot unlearn a row; None if it can."""
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
    if spec["intercept"] == "prior":
        return "the prior counts the labels of all rows, and what a single row did is not kept"
    if spec["scaling"] != "none":
        return (
            "scaling 'balanced' has statistics of all rows, and what a single row did is not kept"
        )
    if spec["map"] is not None and spec["map"]["kind"] == "nystroem":
        return "the map 'nystroem' is made of rows"
    if spec.get("history"):
        return "later rows have columns of the history that the row has entered"
    if age_features(spec):
        return "the newest time, from which an `age` is measured, may be that of the row"
    if spec["norm"] == "running":
        return "norm 'running' has statistics of all rows, and what a single row did is not kept"
    return None


def unlearner(learner: Learner) -> Unlearner:
    """Cast a learner for which `why_not_unlearn` returns None."""
    return cast(Unlearner, learner)
