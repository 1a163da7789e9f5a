"""ColumnProfile against a brute-force profile of the same rows."""

import math

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, Outcome, dump, resolve_spec
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.profile import ColumnNames, ColumnProfile, kernels as k
from dualstream.solvers.profile.stability_index import SMOOTHING
from dualstream.solvers.rows.hashing import hash_names

N = 600 if DISABLED else 6_000
TYPES = {
    "price": "number",
    "a=b": "category",
    "user.age": "number",
    "subject": {"kind": "text"},
    "at": {"kind": "time"},
    "member": "boolean",
    "site": "category",
    "hour": "category",
}
FLAT = {"columns": {"types": TYPES}, "crosses": [["site", "hour"]]}
INDICATED = {"columns": {"types": TYPES, "missing_indicator": True}}


def accepted(n, rejected=()):
    mask = np.zeros(n, bool)
    mask[list(rejected)] = True
    return Outcome(np.zeros(n), np.zeros(n), np.zeros(n, bool), mask)


class Stream:
    """Rows as dicts of features, as the profile gets them."""

    def __init__(self, rows, bits=18):
        self.rows = rows
        names = list(dict.fromkeys(name for row in rows for name in row))
        self.pairs = list(zip(hash_names(names, bits).tolist(), names, strict=True))
        self.name_of = dict(self.pairs).get
        index = {name: at for at, name in self.pairs}
        indptr = np.cumsum([0, *map(len, rows)])
        entries = [sorted((index[name], value) for name, value in row.items()) for row in rows]
        flat = [pair for row in entries for pair in row]
        n = len(rows)
        self.batch = Batch(
            indptr,
            np.array([at for at, _ in flat], np.int32),
            np.array([value for _, value in flat], float),
            np.ones(n),
            np.ones(n),
            1 << bits,
        )

    def profile(self, spec=None, pieces=(), rejected=()):
        profile = ColumnProfile(resolve_spec(spec or {}))
        profile.add_names(self.pairs, 1, 0)
        edges = [0, *pieces, len(self.rows)]
        outcome = accepted(len(self.rows), rejected)
        for first, last in zip(edges, edges[1:], strict=False):
            part = Outcome(*(getattr(outcome, name)[first:last] for name in
                             ("scores", "losses", "updated", "rejected")))  # fmt: skip
            profile.count(self.batch[first:last], part, first + 1)
        return profile


def stream(n=N, seed=0, shift_at=None):
    random = np.random.default_rng(seed)
    rows = []
    for t in range(n):
        moved = shift_at is not None and t >= shift_at
        row = {"price": random.normal(3.0 + 2.0 * moved, 2.0)}
        if random.random() < 0.7:
            row[f"site={random.choice(list('abcdefghijklmnop'), p=P)}"] = 1.0
        if random.random() < 0.4:
            row["rare"] = float(random.integers(1, 4))
        if t > 50 and random.random() < 0.5:
            row |= {f"tags={one}": 1.0 for one in set(random.choice(list("uvwxyz"), 3))}
        rows.append(row)
    return Stream(rows)


P = np.array([0.3, 0.2, 0.1] + [0.4 / 13] * 13)


def content(profile):
    return dump(profile.state(), {})


# -- the numbers ---------------------------------------------------------------------------------


def test_counts_moments_and_values_equal_those_of_numpy():
    random = stream()
    rejected = range(0, N, 7)
    profile = random.profile(rejected=rejected)
    learned = [row for t, row in enumerate(random.rows) if t % 7]
    assert profile.rows == len(learned)
    result = {column.name: column for column in profile.columns(random.name_of)}
    for name in ("price", "rare"):
        numbers = np.array([row[name] for row in learned if name in row])
        first = next(t for t, row in enumerate(learned) if name in row)
        one = result[name]
        assert (one.kind, one.count, one.others) == ("number", len(numbers), 0)
        assert one.missing == len(learned) - first - len(numbers)
        assert one.mean == pytest.approx(numbers.mean()) and one.sd == pytest.approx(numbers.std())
        assert (one.minimum, one.maximum) == (numbers.min(), numbers.max())
        assert one.last == numbers[-1]
        assert one.missing_includes_zero
    for name in ("site", "tags"):
        values = [
            [key.partition("=")[2] for key in row if key.startswith(f"{name}=")] for row in learned
        ]
        first = next(t for t, some in enumerate(values) if some)
        with_one = [some for some in values if some]
        one = result[name]
        assert (one.kind, one.count) == ("category", len(with_one))
        assert one.missing == len(learned) - first - len(with_one)
        assert one.last in with_one[-1]
        every = [value for some in values for value in some]
        for value, count in one.top:
            assert count <= every.count(value)
        if name == "tags":
            assert dict(one.top) == {value: every.count(value) for value in set(every)}
        else:
            assert [value for value, _ in one.top[:3]] == ["a", "b", "c"]


def bins_of(edges, value):
    return sum(int(edge < value) + int(edge <= value) for edge in edges)


def stability(short, long):
    even = SMOOTHING / len(short)
    long = long - short  # the past without the recent rows
    p = (1 - SMOOTHING) * short / short.sum() + even
    q = (1 - SMOOTHING) * long / long.sum() + even
    chance = (1 / short.sum() + 1 / long.sum()) / 2 * (1 - q) * (q - even) / q
    return float(np.sum((p - q) * np.log(p / q) - chance))


is_profiled = getattr(k.is_profiled, "py_func", k.is_profiled)


@pytest.mark.parametrize("n", [4_000, k.ALL_ROWS + 6_000])
def test_the_stability_index_equals_that_of_weighted_histograms(n):
    random = stream(n=n, shift_at=n - 800)
    profile = random.profile()
    result = {one.name: one.psi for one in profile.columns(random.name_of)}
    ages = np.arange(n - 1, -1, -1.0)
    profiled = [t for t in range(n) if is_profiled(t)]
    assert profile.rows == len(profiled)
    if n > k.ALL_ROWS:
        # A profiled row stands for ONE_IN rows; the last one has the weight 1.
        later = np.arange(len(profiled) - k.ALL_ROWS - 1, -1, -1.0)
        first = np.arange(k.ALL_ROWS - 1, -1, -1.0) + k.ONE_IN * len(later)
        ages = np.full(n, math.inf)
        ages[profiled] = np.concatenate([first, k.ONE_IN * later])
    weights = np.array([(1 - 1 / rows) ** ages for rows in (k.SHORT_ROWS, k.LONG_ROWS)])
    if n > k.ALL_ROWS:
        weights[:, : k.ALL_ROWS] /= k.ONE_IN
    for name in ("price", "rare"):
        present = [t for t, row in enumerate(random.rows) if name in row]
        sample = sorted(random.rows[t][name] for t in present[:128])
        edges = [sample[128 * j // 10] for j in range(1, 10)]
        histograms = np.zeros((2, 21))
        for t in range(present[127] + 1, n):
            row = random.rows[t]
            at = bins_of(edges, row[name]) if name in row else 20
            histograms[:, at] += weights[:, t]
        assert result[name] == pytest.approx(max(0, stability(*histograms)), rel=1e-9)
    index = {name: at for at, name in random.pairs}
    first = next(t for t, row in enumerate(random.rows) if any("tags" in key for key in row))
    histograms = np.zeros((2, 33))
    for t in range(first, n):
        keys = [key for key in random.rows[t] if key.startswith("tags=")]
        for at in [(index[key] * 2246822519 % 2**32) >> 27 for key in keys] or [32]:
            histograms[:, at] += weights[:, t]
    assert result["tags"] == pytest.approx(max(0, stability(*histograms)), rel=1e-9)
    assert profile.drifts(False)[0] == ("price", result["price"])
    assert result["price"] > 0.1 > 0.05 > result["tags"]


def test_frequent_values_are_found_among_very_many():
    random = np.random.default_rng(2)
    rows = [{f"id={random.integers(10**6) if t % 3 else 'often'}": 1.0} for t in range(N)]
    often = Stream(rows, bits=24)
    [column] = often.profile().columns(often.name_of)
    value, count = column.top[0]
    assert value == "often" and N / 3 - N / 10 <= count <= N / 3 + 1
    assert sum(one for _, one in column.top) <= N


# -- state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [(1, 2, 3), (100, 101, 4_096, 4_097), tuple(range(1, N, 13))])
def test_a_batch_equals_its_pieces(pieces):
    random = stream()
    pieces = [at for at in pieces if at < N]
    whole = content(random.profile(rejected=[3, 5]))
    assert content(random.profile(pieces=pieces, rejected=[3, 5])) == whole


@pytest.mark.parametrize("at", [0, 1, 127, 128, 129, N // 2])
def test_restored_profile_continues_like_the_original(at):
    random = stream()
    spec = resolve_spec({})
    first = ColumnProfile(spec)
    first.add_names(random.pairs, 1, 0)
    first.count(random.batch[:at], accepted(at), 1)
    second = ColumnProfile(spec)
    second.restore(first.state(), random.pairs)
    assert content(second) == content(first)
    assert second.columns(random.name_of) == first.columns(random.name_of)
    for one in (first, second):
        one.count(random.batch[at:], accepted(N - at), at + 1)
    assert content(second) == content(first)


WIDE = {"features": {"kind": "indexed", "dim": 40}}


def count_numbered(batch, edges, profile):
    """Count pieces of a batch, of which each seventh row is rejected."""
    for first, last in zip(edges, edges[1:], strict=False):
        rejected = [t - first for t in range(first, last) if t % 7 == 0]
        profile.count(batch[first:last], accepted(last - first, rejected), first + 1)
    return content(profile)


@pytest.mark.skipif(DISABLED, reason="takes long without compilation")
@pytest.mark.parametrize("pieces", [1, 13, 400])
def test_pieces_and_restored_states_profile_the_same_rows(pieces):
    """Not all rows, and columns that come late; rows that do not count are not numbered."""
    random, n = np.random.default_rng(3), 3 * k.ALL_ROWS // 2
    dense = random.normal(size=(n, 40)) * (random.random((n, 40)) < 0.3)
    dense[: n - 1_000, 20:] = 0.0
    batch = Batch.from_dense(dense, np.ones(n), np.where(np.arange(n) % 11, 1.0, 0.0))
    whole, first, second = (ColumnProfile(resolve_spec(WIDE)) for _ in range(3))
    expected = count_numbered(batch, [0, n], whole)
    counted = sum(t % 7 > 0 and t % 11 > 0 for t in range(n))
    assert k.ALL_ROWS < whole.rows == sum(map(is_profiled, range(counted))) < counted
    edges = np.unique([0, *random.integers(1, n, pieces), n]).tolist()
    count_numbered(batch, edges[:-1], first)
    second.restore(first.state(), [])
    assert count_numbered(batch, edges[-2:], first) == expected
    assert count_numbered(batch, edges[-2:], second) == expected


def test_when_a_name_is_read_does_not_matter():
    """A feature counts from the entry that brought its name, also if that is read early."""
    random = stream(400)
    early, late = (ColumnProfile(resolve_spec({})) for _ in range(2))
    parts = [(1, random.pairs[:2]), (151, random.pairs[2:9]), (301, random.pairs[9:])]
    for since, pairs in parts:
        early.add_names(pairs, since, 0)
    early.count(random.batch, accepted(400), 1)
    for since, pairs in parts:
        late.add_names(pairs, since, since - 1)
        part = random.batch[since - 1 : since + 149]
        late.count(part, accepted(len(part)), since)
    assert content(early) == content(late)
    rows_with_all = random.profile()
    assert content(early) != content(rows_with_all)


def test_names_that_are_not_reached_yet_are_not_in_the_state():
    random = stream(300)
    early, late = (ColumnProfile(resolve_spec({})) for _ in range(2))
    for one in (early, late):
        one.add_names(random.pairs[:1], 1, 0)
    early.add_names(random.pairs[1:], 101, 0)
    for one in (early, late):
        one.count(random.batch[:100], accepted(100), 1)
    assert content(early) == content(late)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("cells"),
        lambda state: state["cells"].__setitem__((0, 0), np.nan),
        lambda state: state["counts"].__setitem__((0, k.COUNT), 10**9),
        lambda state: state["counts"].__setitem__((0, k.BINNED_ROW), k.NOT_SEEN),
        lambda state: state["counts"].__setitem__((0, k.FEATURE), -5),
        lambda state: state["counts"].__setitem__((0, k.KIND), k.TIME),
        lambda state: state["sizes"].__setitem__(k.COLUMNS, 200),
        lambda state: state.clear(),
    ],
)
def test_a_damaged_state_is_refused(change):
    random = stream(500)
    state = random.profile().state()
    change(state)
    with pytest.raises(CorruptState):
        ColumnProfile(resolve_spec({})).restore(state, random.pairs)


# -- columns -------------------------------------------------------------------------------------


def test_the_column_of_a_name():
    names = ColumnNames(resolve_spec(FLAT))
    number, category = (k.NUMBER, k.IS_NUMBER), (k.CATEGORY, k.IS_CATEGORY)
    expected = {
        "price": ("price", *number),
        "a=b=c": ("a=b", *category),
        "a=x": ("a", *category),
        "user.age": ("user.age", *number),
        "user.name=ann": ("user.name", *category),
        "subject:a=b:c": ("subject", k.TEXT, k.IS_WORD),
        "at.hour.sin": ("at", k.TIME, k.IS_TIME),
        "at.weekday=mon": ("at", k.TIME, k.IS_TIME),
        "member": ("member", k.BOOLEAN, k.IS_NUMBER),
        "site=http://a.b/?c=d": ("site", *category),
        "site*hour=news,9": None,
        "other": ("other", *number),
        "site=missing": ("site", *category),
    }
    assert {name: names.column_of(name) for name in expected} == expected
    indicated = ColumnNames(resolve_spec(INDICATED))
    assert indicated.column_of("site=missing") == ("site", k.CATEGORY, k.IS_MISSING)
    assert indicated.column_of("new=missing") == ("new", k.UNKNOWN, k.IS_MISSING)
    plain = ColumnNames(resolve_spec({}))
    assert plain.column_of("zip=02134") == ("zip", *category)
    assert plain.column_of("at.hour.sin") == ("at.hour.sin", *number)


def test_kinds_of_columns():
    rows = [
        {"subject:free": 2.0, "subject:win": 1.0, "at.hour.sin": 0.5, "at.hour.cos": 0.5},
        {"subject:free": 1.0, "member": 1.0, "site*hour=a,9": 1.0, "site=a": 1.0, "hour=9": 1.0},
        {"price": 3.0, "at.hour.sin": 1.0},
    ]
    texts = Stream(rows)
    result = {one.name: one for one in texts.profile(FLAT).columns(texts.name_of)}
    assert list(result) == ["subject", "at", "member", "site", "hour", "price"]
    subject, at = result["subject"], result["at"]
    assert (subject.kind, subject.count, subject.missing) == ("text", 2, 1)
    assert (subject.mean, subject.sd) == (2.0, 1.0)
    assert (at.kind, at.count, at.missing, at.mean) == ("time", 2, 1, None)
    assert (result["member"].kind, result["member"].top) == ("boolean", [("true", 1)])
    assert (result["site"].last, result["hour"].last) == ("a", "9")


def test_zeros_are_known_where_missing_values_are_indicated():
    rows = [{"price": 4.0}, {}, {"price=missing": 1.0}, {"price": 2.0}, {}]
    indicated = Stream(rows)
    [price] = indicated.profile(INDICATED).columns(indicated.name_of)
    assert (price.count, price.missing, price.missing_includes_zero) == (4, 1, False)
    numbers = np.array([4.0, 0.0, 2.0, 0.0])
    assert price.mean == pytest.approx(numbers.mean()) and price.sd == pytest.approx(numbers.std())
    assert (price.minimum, price.maximum, price.last) == (0.0, 4.0, 0.0)


def test_columns_with_numbers_and_texts():
    rows = [{"a": 1.0, "b=x": 1.0}, {"a=n/a": 1.0, "b": 5.0}, {"a": 3.0, "b=x": 1.0}]
    mixed = Stream(rows)
    a, b = mixed.profile().columns(mixed.name_of)
    assert (a.kind, a.count, a.others, a.mean) == ("number", 3, 1, 2.0)
    assert (b.kind, b.top) == ("category", [("x", 2), ("(a number)", 1)])


def test_numbered_features_are_columns_without_missing_values():
    random = np.random.default_rng(4)
    dense = np.round(random.normal(size=(300, 20)), 1)
    dense[:10, 3] = 0.0
    profile = ColumnProfile(resolve_spec({"features": {"kind": "indexed", "dim": 20}}))
    for row in dense:
        profile.count(Batch.from_dense(row, [1.0]), accepted(1), 1)
    whole = ColumnProfile(resolve_spec({"features": {"kind": "indexed", "dim": 20}}))
    whole.count(Batch.from_dense(dense, np.ones(300)), accepted(300), 1)
    assert content(whole) == content(profile)
    restored = ColumnProfile(resolve_spec({"features": {"kind": "indexed", "dim": 20}}))
    restored.restore(whole.state(), [])
    for one in (whole, restored):
        one.count(Batch.from_dense(dense, np.ones(300)), accepted(300), 301)
    assert content(whole) == content(restored)
    result = {int(one.name) - 1: one for one in profile.columns(lambda _: None)}
    assert sorted(result) == list(range(20))
    for index, one in result.items():
        assert (one.count, one.missing) == (300, 0)
        assert one.mean == pytest.approx(dense[:, index].mean(), abs=1e-12)
        assert one.sd == pytest.approx(dense[:, index].std())
        assert (one.minimum, one.maximum) == (dense[:, index].min(), dense[:, index].max())
        assert one.last == dense[-1, index]


def test_the_first_256_columns_are_kept():
    named = Stream([{f"c{j}": 1.0 for j in range(300)}], bits=24)
    profile = named.profile({"features": {"kind": "hashed", "bits": 24}})
    assert profile.column_names() == [f"c{j}" for j in range(256)] and profile.has_more
    wide = ColumnProfile(resolve_spec({"features": {"kind": "indexed", "dim": 300}}))
    wide.count(Batch.from_dense(np.ones(300), [1.0]), accepted(1), 1)
    assert wide.column_names() == [str(j + 1) for j in range(256)] and wide.has_more


def test_without_room_for_names_many_values_say_nothing_of_missing_ones():
    many = Stream([{f"id={t}": 1.0, "few=a": 1.0} for t in range(1_500)])
    profile = many.profile()
    previous, full = (profile.columns(many.name_of, is_full) for is_full in (False, True))
    assert {one.name: one.missing for one in previous} == {"id": 0, "few": 0}
    assert {one.name: one.missing for one in full} == {"id": None, "few": 0}


# -- drift ---------------------------------------------------------------------------------------


def profile_of(matrix):
    profile = ColumnProfile(resolve_spec({"features": {"kind": "indexed", "dim": matrix.shape[1]}}))
    worst, n = np.zeros(matrix.shape[1]), len(matrix)
    for first in range(0, n, 500):
        rows = matrix[first : first + 500]
        some = Batch.from_dense(rows, np.ones(len(rows)))
        profile.count(some, accepted(len(some)), first + 1)
        worst = np.fmax(worst, profile.indices())
    return profile, worst


CATEGORIES = 30


def named_streams(n, seed):
    """Ten columns of normal numbers, and ten of categories: indices and values (n, 20)."""
    random = np.random.default_rng(seed)
    shares = 1.0 / np.arange(1, CATEGORIES + 1)
    drawn = random.choice(CATEGORIES, (n, 10), p=shares / shares.sum())
    indices = np.concatenate([np.tile(np.arange(10), (n, 1)), 100 + 100 * np.arange(10) + drawn], 1)
    return indices, np.concatenate([random.normal(size=(n, 10)), np.ones((n, 10))], 1)


def indices_over_time(indices, values, every):
    """Stability index of each column after each `every` rows: (rows / every, columns)."""
    profile, n = ColumnProfile(resolve_spec({})), len(values)
    names = [(j, f"n{j}") for j in range(10)]
    names += [(100 * j + v, f"c{j}={v}") for j in range(1, 11) for v in range(CATEGORIES)]
    profile.add_names(names, 1, 0)
    ends = np.arange(0, 20 * n + 1, 20)
    columns = indices.ravel().astype(np.int32), values.ravel()
    batch = Batch(ends, *columns, np.ones(n), np.ones(n), 1 << 18)
    read = []
    for first in range(0, n, every):
        profile.count(batch[first : first + every], accepted(every), first + 1)
        read.append(profile.indices())
    return np.array(read)


@pytest.mark.skipif(DISABLED, reason="takes long without compilation")
def test_stationary_columns_do_not_drift_and_a_shift_does():
    """Both while all rows are profiled and later."""
    assert np.nanmax(indices_over_time(*named_streams(40_000, 7), 500)) < 0.1, "false alarms"
    for start in (k.ALL_ROWS - 3_000, 4 * k.ALL_ROWS):
        indices, values = named_streams(start + 2_000, 8)
        values[start:, :10] += 1.0
        changed = np.random.default_rng(9).random((2_000, 10)) < 0.3
        indices[start:, 10:][changed] = (120 + 100 * np.arange(10) + np.zeros_like(changed))[
            changed
        ]
        read = indices_over_time(indices, values, 50)[start // 50 :]
        rows = 50 * (1 + (read >= 0.1).argmax(axis=0))
        assert np.all(read[-1] >= 0.1)
        # With all rows profiled, the medians are 450 and 250 rows.
        assert np.median(rows[:10]) <= 1.3 * 450 and np.median(rows[10:]) <= 1.3 * 250


@pytest.mark.parametrize("devices", [8, 55])
def test_devices_that_take_turns_are_in_the_profile_alike(devices):
    n = k.ALL_ROWS + 80 * 440
    ends, turn = np.arange(0, 2 * n + 1, 2), np.arange(n) % devices
    indices = np.stack([np.zeros(n, int), 1 + turn], 1).ravel().astype(np.int32)
    values = np.stack([turn + 1.0, np.ones(n)], 1).ravel()
    profile = ColumnProfile(resolve_spec({}))
    names = [(0, "number"), *((1 + j, f"device={j}") for j in range(devices))]
    profile.add_names(names, 1, 0)
    batch = Batch(ends, indices, values, np.ones(n), np.ones(n), 1 << 18)
    profile.count(batch, accepted(n), 1)
    number, device = profile.columns(dict(names).get)
    assert number.count == profile.rows == k.ALL_ROWS + 80 * 440 // k.ONE_IN
    assert number.mean == pytest.approx((devices + 1) / 2, rel=0.02)
    assert max(number.psi, device.psi) < 0.1
    if devices <= k.TOP:
        counts = [rows - k.ALL_ROWS / devices for _, rows in device.top]
        assert len(counts) == devices
        assert counts == pytest.approx([80 * 440 / k.ONE_IN / devices] * devices, rel=0.1)


@pytest.mark.parametrize("value", [0.5, 2.0])
def test_a_constant_that_changes_drifts(value):
    column = np.ones((4_000, 1))
    column[3_000:] = value
    profile, _ = profile_of(column)
    assert profile.indices()[0] > 0.25


def test_there_is_no_index_before_enough_rows():
    random = np.random.default_rng(8)
    profile, _ = profile_of(random.normal(size=(2_000, 1)))
    assert math.isnan(profile.indices()[0])
    profile, _ = profile_of(random.normal(size=(2_200, 1)))
    assert profile.indices()[0] < 0.1
