"""SegmentSums against a dictionary."""

import math
from collections import defaultdict

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, InvalidSpec, Outcome, make_learner, resolve_spec
from dualstream.solvers.evaluation.segments.kernels import MAX_VALUES, MEAN_AGE
from dualstream.solvers.evaluation.segments.sums import ALL, MISSING, OTHER, SegmentSums
from dualstream.solvers.protocols.learner import UNMARKED
from dualstream.solvers.rows.hashing import hash_names

BITS = 14
TYPES = {"country": "category", "tags": "category", "member": "boolean", "price": "number"}
SEGMENTS = ["country", "member", "tags"]


def spec_of(task="binary", segments=SEGMENTS, **fields):
    columns = {"types": TYPES, "missing_indicator": fields.pop("missing_indicator", False)}
    spec = {"algorithm": "sgd", "task": task, "features": {"kind": "hashed", "bits": BITS}}
    if task != "regression":
        spec["loss"] = "logistic"
    return resolve_spec(spec | {"columns": columns, "segments": segments} | fields)


class Stream:
    """Rows with the segments that a dictionary finds, and the names in their order."""

    def __init__(self, n, seed=0, countries=8, task="binary"):
        draw = np.random.default_rng(seed)
        self.task, self.rows, self.segments = task, [], []
        for _ in range(n):
            names, segments = ["price"], {}
            country = int(draw.integers(0, countries))
            if country:
                names.append(f"country={country}")
            segments["country"] = [str(country)] if country else [MISSING]
            tags = {str(tag) for tag in draw.integers(0, 4, draw.integers(0, 3))}
            names += [f"tags={tag}" for tag in sorted(tags)]
            segments["tags"] = sorted(tags) or [MISSING]
            member = draw.random() < 0.3
            names += ["member"] * member
            segments["member"] = ["true" if member else "false"]
            self.rows.append(names)
            self.segments.append(segments)
        labels = draw.normal(3.0, 2.0, n) if task == "regression" else draw.integers(0, 2, n)
        self.labels = labels * 2.0 - 1.0 if task == "binary" else labels * 1.0
        self.weights = draw.choice([0.0, 1.0, 2.5], n)
        self.classes = ("ant", "bee") if task == "multiclass" else ()
        self.price = draw.normal(size=n)

    def batch(self, begin=0, end=None):
        indptr, indices, values = [0], [], []
        for names, price in list(zip(self.rows, self.price, strict=True))[begin:end]:
            row = {"price": price, **dict.fromkeys(names[1:], 1.0)}
            at = hash_names(list(row), BITS).tolist()
            pairs = sorted(zip(at, row.values(), strict=True))
            indices += [index for index, _ in pairs]
            values += [value for _, value in pairs]
            indptr.append(len(indices))
        return Batch.from_csr(
            indptr, indices, values, self.labels[begin:end], self.weights[begin:end], dim=1 << BITS
        ).with_labels(self.labels[begin:end], self.classes)

    def names(self, begin=0, end=None, earlier=()):
        new = dict.fromkeys(name for row in self.rows[begin:end] for name in row)
        new = [name for name in new if name not in earlier]
        return list(zip(hash_names(new, BITS).tolist(), new, strict=True)) if new else []


def learn(spec, stream, sizes, learner=None):
    """Segments after learning the stream in batches of these sizes, and all outcomes."""
    sums, learner = SegmentSums(spec), learner or make_learner(spec)
    earlier, done, outcomes = set(), 0, []
    for size in sizes:
        pairs = stream.names(done, done + size, earlier)
        earlier.update(name for _, name in pairs)
        sums.add_names(pairs, done + 1, done)
        batch = stream.batch(done, done + size)
        outcomes.append(learner.learn(batch))
        sums.count(batch, outcomes[-1], done + 1)
        done += size
    return sums, Outcome.joined(outcomes)


def by_dictionary(stream, outcome, column, faded=False):
    """Rows and sums of each segment."""
    n = len(stream.labels)
    sums = defaultdict(lambda: np.zeros(5))
    first = {}
    for i in range(n):
        y, score = stream.labels[i], outcome.scores[i]
        weight = (1 - 1 / MEAN_AGE) ** (n - 1 - i) if faded else 1.0
        if stream.task == "regression":
            terms = (1.0, abs(y - score), 0.0, score, y)
        elif stream.task == "binary":
            p = 1.0 / (1.0 + math.exp(-score))
            wrong = float((score >= 0.0) != (y > 0.0))
            terms = (1.0, wrong, -math.log(p if y > 0 else 1 - p), p, float(y > 0))
        else:
            predicted = outcome.predicted[i]
            wrong = predicted < 0 or outcome.classes[predicted] != stream.classes[int(y)]
            terms = (1.0, float(wrong), outcome.log_losses[i], 0.0, 0.0)
        for value in stream.segments[i][column]:
            is_new = value not in first and value not in (MISSING, "true", "false")
            if is_new and len(first) < MAX_VALUES:
                first[value] = True
            is_separate = value in first or value in (MISSING, "true", "false")
            sums[value if is_separate else OTHER] += weight * np.array(terms)
        sums[None] += weight * np.array(terms)
    return sums


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_means_are_those_of_a_dictionary(task, subtests):
    stream = Stream(700, countries=150, task=task)
    sums, outcome = learn(spec_of(task), stream, [300, 1, 399])
    for column in SEGMENTS:
        for view, faded in (("since_start", False), ("fading", True)):
            with subtests.test(column=column, view=view):
                expected = by_dictionary(stream, outcome, column, faded)
                total = expected.pop(None)
                all_rows, *segments = getattr(sums, view)(column)
                means = {one.value: one for one in segments}
                assert (all_rows.value, all_rows.harm) == (ALL, 0.0)
                assert all_rows.rows == pytest.approx(total[0])
                assert means.keys() == expected.keys()
                measure = 1 if task == "regression" else 2
                for value, line in expected.items():
                    one, of = means[value], line / line[0]
                    assert one.rows == pytest.approx(line[0])
                    error = one.mae if task == "regression" else one.error_rate
                    assert error == pytest.approx(of[1])
                    if task == "binary":
                        assert one.mean_label == pytest.approx(of[4])
                    assert one.log_loss == (None if task == "regression" else pytest.approx(of[2]))
                    shown = one.mean_prediction
                    assert shown == (None if task == "multiclass" else pytest.approx(of[3]))
                    excess = (of - total / total[0])[measure] * line[0] / total[0]
                    assert one.harm == pytest.approx(excess, abs=1e-12)
                harms = [one.harm for one in segments]
                assert harms == sorted(harms, reverse=True)
    if task == "binary":
        values = {one.value for one in sums.since_start("country")[1:]}
        assert len(values) == MAX_VALUES + 2 and OTHER in values


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_batches_equal_rows_bit_for_bit(task):
    stream, spec = Stream(300, 1, 150, task), spec_of(task)
    states = [learn(spec, stream, sizes)[0].state() for sizes in ([300], [1] * 300, [7] * 42 + [6])]
    for state in states[1:]:
        assert {name: array.tobytes() for name, array in state.items()} == {
            name: array.tobytes() for name, array in states[0].items()
        }


def test_state_restores_to_the_bit():
    stream, spec = Stream(400, 2, 150), spec_of()
    whole, _ = learn(spec, stream, [400])
    sums, learner = SegmentSums(spec), make_learner(spec)
    assert sums.state() == {}
    for begin, end in ((0, 250), (250, 400)):
        earlier = {name for row in stream.rows[:begin] for name in row}
        sums.add_names(stream.names(begin, end, earlier), begin + 1, begin)
        batch = stream.batch(begin, end)
        sums.count(batch, learner.learn(batch), begin + 1)
        restored = SegmentSums(spec)
        restored.restore(sums.state(), stream.names(0, end))
        sums = restored
    for name, array in whole.state().items():
        assert sums.state()[name].tobytes() == array.tobytes()
    assert sums.since_start("country") == whole.since_start("country")


def test_names_count_from_their_position():
    """A reader of the journal may know a name before the row that brought it."""
    stream, spec = Stream(60, 3), spec_of()
    pairs = stream.names()
    late, early, learner = SegmentSums(spec), SegmentSums(spec), make_learner(spec)
    batch = stream.batch()
    outcome = learner.learn(batch)
    early.add_names(pairs, 31, 0)
    early.count(batch, outcome, 1)
    late.count(batch[:30], outcome[:30], 1)
    late.add_names(pairs, 31, 30)
    late.count(batch[30:], outcome[30:], 31)
    assert early.since_start("tags") == late.since_start("tags")
    [missing] = [one for one in early.since_start("tags") if one.value == MISSING]
    assert 30 < missing.rows < 60


def test_rejected_rows_and_rows_before_a_new_start_do_not_count():
    stream, spec = Stream(50, 4), spec_of()
    sums, learner = SegmentSums(spec), make_learner(spec)
    sums.add_names(stream.names(), 1, 0)
    batch = stream.batch()
    outcome = learner.learn(batch)
    outcome.rejected[10:15] = True
    sums.count(batch, outcome, 1)
    assert sum(one.rows for one in sums.since_start("country")[1:]) == 45
    outcome.relearned = 12
    sums.count(batch, outcome, 51)
    assert sum(one.rows for one in sums.since_start("country")[1:]) == 35
    assert sum(one.rows for one in sums.fading("country")[1:]) == pytest.approx(35, rel=0.01)


def test_rates_are_of_the_marked_rows():
    stream = Stream(300, 6)
    spec = dict(spec_of()) | {"intervals": {"coverage": [0.8, 0.9]}}
    sums, learner = SegmentSums(spec), make_learner(spec_of())
    sums.add_names(stream.names(), 1, 0)
    batch, draw = stream.batch(), np.random.default_rng(7)
    outcome = learner.learn(batch)
    marks = {name: draw.integers(0, 3, 300).astype(np.uint8) for name in ("0.8", "0.9")}
    for name, marked in marks.items():
        outcome.mark(name, marked)
    for begin, end in ((0, 100), (100, 101), (101, 300)):
        sums.count(batch[begin:end], outcome[begin:end], begin + 1)

    def rate(name, rows):
        marked = marks[name][rows]
        return pytest.approx(np.mean(marked[marked != UNMARKED]))

    for one in sums.since_start("country"):
        is_all = one.value == ALL
        rows = [is_all or of["country"] == [one.value] for of in stream.segments]
        assert one.coverage == {level: rate(level, rows) for level in ("0.8", "0.9")}
    totals = sums.totals("country", 3)
    assert len(totals) == 5 and totals["1"].coverage["0.8"] == rate(
        "0.8", [of["country"] == ["1"] for of in stream.segments]
    )
    without = SegmentSums(spec)
    without.restore(sums.state(), stream.names())
    assert without.since_start("country") == sums.since_start("country")


def test_missing_indicator_tells_false_from_missing():
    spec = spec_of(missing_indicator=True, segments=["member", "country"])
    sums, learner = SegmentSums(spec), make_learner(spec)
    rows = [["member"], ["member=missing", "country=(all)"], ["price", "country=missing"]]
    names = list(dict.fromkeys(name for row in rows for name in row))
    sums.add_names(list(zip(hash_names(names, BITS).tolist(), names, strict=True)), 1, 0)
    indices = [sorted(hash_names(row, BITS).tolist()) for row in rows]
    indptr = np.cumsum([0, *map(len, indices)])
    at = np.concatenate(indices)
    batch = Batch.from_csr(indptr, at, np.ones(len(at)), np.ones(3), dim=1 << BITS)
    sums.count(batch, learner.learn(batch), 1)
    counts = {one.value: one.rows for one in sums.since_start("member")[1:]}
    assert counts == {"true": 1, "false": 1, MISSING: 1}
    assert {one.value: one.rows for one in sums.since_start("country")[1:]} == {
        OTHER: 1,
        MISSING: 2,
    }


def test_damaged_states_are_corrupt(subtests):
    stream, spec = Stream(20, 5), spec_of()
    state = learn(spec, stream, [20])[0].state()
    wrong = {
        "no sums": {name: state[name] for name in ("weight", "lines")},
        "lines beyond": state | {"lines": state["lines"] + 1000},
        "lines twice": state | {"lines": state["lines"] * 0},
        "other shape": state | {"sums": state["sums"][:, :, :2]},
    }
    for what, damaged in wrong.items():
        with subtests.test(what), pytest.raises(CorruptState):
            SegmentSums(spec).restore(damaged, stream.names())


@pytest.mark.parametrize(
    ("segments", "field", "reason"),
    [
        ("country", "/segments", "a list of at most 4 columns"),
        (["a"] * 5, "/segments", "a list of at most 4 columns"),
        (["city"], "/segments/0", "a column of type category or boolean (country, tags, member)"),
        (["country", "price"], "/segments/1", "price is a column of type number: declare one"),
        (["country", "country"], "/segments/1", "not listed twice"),
        ([7], "/segments/0", "a column of type category"),
    ],
)
def test_wrong_segments_are_refused(segments, field, reason):
    with pytest.raises(InvalidSpec) as raised:
        spec_of(segments=segments)
    assert raised.value.field == field and reason in str(raised.value)


def test_text_columns_and_rows_that_are_not_flat_are_refused():
    columns = {"types": {"note": "text"}}
    with pytest.raises(
        InvalidSpec, match=r"`columns.types` has none\); note is a column of type t"
    ):
        resolve_spec({"columns": columns, "segments": ["note"]})
    with pytest.raises(InvalidSpec, match="given with `columns`"):
        resolve_spec({"segments": ["note"]})
    assert "segments" not in resolve_spec({"columns": columns, "segments": []})
