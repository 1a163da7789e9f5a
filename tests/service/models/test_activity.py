"""Times at which rows were learned: few, evenly spaced, and without what was rolled back."""

from itertools import pairwise

from dualstream.service.models.activity import MAX_POINTS, Activity


def test_moments_are_evenly_spaced_and_end_with_the_last_record():
    activity = Activity()
    assert activity.last_at is None
    for k in range(20_000):
        activity.saw(k, 100.0 + k / 8)
        assert activity.last_at == 100.0 + k / 8 and activity.rows[-1] == k
    pairs = list(zip(activity.rows, activity.times, strict=True))
    assert MAX_POINTS // 2 <= len(pairs) <= MAX_POINTS
    assert all(rows == 8 * (at - 100.0) for rows, at in pairs)
    gaps = {after - before for before, after in pairwise(activity.times[:-1])}
    assert min(gaps) >= 14.0 and max(gaps) <= 16.0


def test_what_a_rollback_undid_has_no_time():
    activity = Activity()
    for rows, now in ((10, 1.0), (20, 3.0), (30, 5.0), (15, 7.0)):
        activity.saw(rows, now)
    assert (list(activity.rows), list(activity.times)) == ([10, 15], [1.0, 7.0])
    # After the clock was set back times still increase.
    activity.saw(16, 4.0)
    assert (list(activity.rows), list(activity.times)) == ([10, 16], [1.0, 4.0])
