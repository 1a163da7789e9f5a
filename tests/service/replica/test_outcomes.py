"""Outcomes of the last controls: a limited number is kept and restored from arrays."""

import numpy as np
import pytest

from dualstream.service.features.members.controls import Demote, Promote
from dualstream.service.features.refits.controls import Refit
from dualstream.service.replica.controls import control_of
from dualstream.service.replica.copies import Rollback
from dualstream.service.replica.outcomes import ControlOutcome, ControlOutcomes
from dualstream.solvers import CorruptState


def kept(most: int) -> ControlOutcomes:
    outcomes = ControlOutcomes(most)
    outcomes.keep(3, control_of(Rollback("0" * 64, 1, "v")), ControlOutcome("it is gone"), True)
    outcomes.keep(7, control_of(Refit("job", 5, "sdca")), ControlOutcome(rows=20), True)
    return outcomes


def test_they_come_back_as_they_were():
    outcomes, again = kept(5), ControlOutcomes(5)
    again.restore(outcomes.state())
    assert again.at(3) == outcomes.at(3) and again.at(7) == outcomes.at(7)
    assert again.at(3).refusal == "it is gone" and again.at(3).fields["version"] == "v"
    assert (again.at(7).refusal, again.at(7).rows) == (None, 20)
    assert again.at(4) is None
    again.restore({})
    assert len(again) == 0 and again.state() == {}


def test_what_became_of_a_control_is_not_shown_of_another():
    """It has the seq of the first one, which was lost."""
    outcomes = kept(5)
    assert outcomes.of(3, control_of(Rollback("0" * 64, 1, "v"))) == ControlOutcome("it is gone")
    assert outcomes.of(7, control_of(Refit("job", 5, "sdca"))) == ControlOutcome(rows=20)
    for seq, order in (
        (3, Rollback("1" * 64, 1, "v")),
        (3, Demote()),
        (4, Demote()),
        (7, Refit("another", 5, "sdca")),
    ):
        assert outcomes.of(seq, control_of(order)) is None
    outcomes.keep(8, control_of(Promote("a")), ControlOutcome(), True)
    assert outcomes.of(8, control_of(Promote("a"))) == ControlOutcome()


def test_the_last_ones_are_kept():
    assert kept(1).at(3) is None and kept(1).at(7) is not None
    fewer = ControlOutcomes(1)
    fewer.restore(kept(5).state())
    assert len(fewer) == 1 and fewer.at(7) is not None
    assert len(kept(0)) == 0


@pytest.mark.parametrize("got", [b"", b"[", b"[1]", b"\xff", b'[[1,"a",2,3,{}]]', b"[[1]]"])
def test_damaged_ones_are_refused(got):
    with pytest.raises(CorruptState):
        ControlOutcomes(5).restore({"json": np.frombuffer(got, np.uint8)})
