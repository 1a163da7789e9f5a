"""What is summed over a request's rows comes out the same of a list as of an array."""

import numpy as np
from hypothesis import given, strategies as st

from dualstream.service.replica.row_sums import are_wrong, count, indices_where, mean, where_not

ROW = st.tuples(
    st.floats(-1e6, 1e6), st.floats(0, 1e6), st.sampled_from((-1.0, 1.0)), st.booleans()
)


@given(st.lists(ROW, max_size=200))
def test_a_list_and_an_array_give_the_same_bits(rows):
    scores, losses, labels, rejected = ([row[column] for row in rows] for column in range(4))
    flags = np.array(rejected, np.bool_)
    total, kept = 0.0, 0
    for loss, was in zip(losses, rejected, strict=True):
        if not was:
            total, kept = total + loss, kept + 1
    expected = total / kept if kept else None
    assert mean(where_not(rejected, losses)) == expected
    assert mean(where_not(flags, np.array(losses))) == expected
    positions = [index for index, was in enumerate(rejected) if was]
    assert indices_where(rejected) == indices_where(flags) == positions
    wrong = [(score >= 0) != (y > 0) for score, y in zip(scores, labels, strict=True)]
    assert are_wrong(scores, np.array(labels)) == wrong
    assert are_wrong(np.array(scores), labels).tolist() == wrong
    assert count(wrong) == count(np.array(wrong, np.bool_)) == sum(wrong)
