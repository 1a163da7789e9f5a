"""The control `refit`: the result of a refit enters the model."""

from typing import ClassVar

from dualstream.service.replica.controls import Kind, Order
from dualstream.service.replica.parts import Arrays
from dualstream.service.replica.state import PositionedState
from dualstream.solvers import RefitError
from dualstream.solvers.offline import refit_methods
from dualstream.solvers.protocols.refit_weights import WEIGHTS
from dualstream.solvers.refit import refit


class Refit(Order, frozen=True, omit_defaults=True):
    """Result of a refit of the window at `seq`: `DUALS`, a `SOLUTION` or `WEIGHTS`."""

    kind: ClassVar[str] = "refit"

    job: str
    seq: int
    method: str
    records: int | None = None
    """For weights: rows that the state at `seq` had learned, rejected or observed."""


def records_of(subject: PositionedState) -> int:
    """Number of rows that the state has learned, rejected or observed."""
    return subject.learner.samples + subject.rejected + getattr(subject.learner, "observed", 0)


def _refit(subject: PositionedState, order: Refit, arrays: Arrays) -> int | None:
    if (why_not := refit_methods.why_not_refit(subject.learner.spec)) is not None:
        raise RefitError(why_not)
    if (paused := subject.parts.why_paused) is not None:
        raise RefitError(paused)
    since = subject.parts.forgotten_seq
    if order.seq < since:
        raise RefitError(
            f"a sample was unlearned at seq {since}; the refit is of seq {order.seq}, "
            "where the model still had that sample"
        )
    if order.records is not None:
        _check_follows(subject, order.seq, order.records, int(arrays["rows"][0]))
    retained = refit.enter_refit(subject.learner, arrays)
    if order.records is not None:
        subject.parts.on_weights_set(subject.seq + 1)
    return retained


def _check_follows(subject: PositionedState, seq: int, records: int, rows: int) -> None:
    """Raise RefitError unless only rows came after `seq`, fewer than `rows`.

    `rows` is the number of rows that the weights were computed from. Weights do not show which
    state they came from; these counts do. A rollback removes rows and takes a seq of its own. Any
    other control takes a seq without a row.
    """
    since = subject.seq - seq
    if since < 0:
        raise RefitError(f"the journal has lost records up to seq {seq}, which the refit used")
    if records_of(subject) - records != since:
        raise RefitError(
            f"the model was changed by hand after seq {seq}, where the weights were computed"
        )
    if since >= rows:
        raise RefitError(
            f"{since} rows came since, at least as many as the weights were computed from"
        )


REFIT = Kind(
    Refit,
    arrays=(refit.DUALS, refit.SOLUTION, WEIGHTS),
    take=_refit,
    is_of_its_spec=True,
    keeps_fields=True,
)
