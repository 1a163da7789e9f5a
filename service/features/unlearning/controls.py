"""The control `unlearn`."""

from typing import Annotated, ClassVar

import msgspec

from dualstream.service.features.unlearning.state import DIGEST_BYTES, RetainedIds
from dualstream.service.replica.controls import ControlRefused, Kind, Order
from dualstream.service.replica.state import PositionedState
from dualstream.solvers import UnlearningError
from dualstream.solvers.protocols import unlearner


class Unlearn(Order, frozen=True):
    """Unlearn every retained row of one sample id."""

    kind: ClassVar[str] = "unlearn"

    sample: Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{{2 * DIGEST_BYTES}}}$")]
    """Digest of the id, in hex."""


def _unlearn(subject: PositionedState, order: Unlearn) -> None:
    if (paused := subject.parts.why_paused) is not None:
        raise ControlRefused(paused)
    ids = subject.parts.find(RetainedIds)
    if ids is None:
        raise UnlearningError(unlearner.why_not_unlearn(subject.spec))
    ids.unlearn(subject.learner, bytes.fromhex(order.sample), subject.seq + 1)
    subject.parts.on_forgotten(subject.seq + 1)


UNLEARN = Kind(Unlearn, _unlearn)
