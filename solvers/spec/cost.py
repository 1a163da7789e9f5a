"""Estimated time of learning and predicting rows, from a specification and a learner's state.

The server learns a short batch in its event loop and a long one in a thread, so it must know how
long a batch takes before it learns it. An estimate gives the order of magnitude, for one core of a
server; the service corrects it by what it measures. `tests/solvers/spec/test_cost.py`
compares estimates with measurements.

    call    one call of a learner: Python, and checks of the batch
    entry   a non-zero feature of a row, for one learner
    width   a pass over all coordinates of the weights
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.evaluation.guard.spec import FIELD as _GUARD
from dualstream.solvers.history.spec import FIELD as _HISTORY, column_count
from dualstream.solvers.nonlinear import NONLINEAR
from dualstream.solvers.offline.refit_methods import SPARSE_STEPS
from dualstream.solvers.portfolio.presets import members_of, shared_algorithms
from dualstream.solvers.protocols.learner import Learner
from dualstream.solvers.protocols.member_learner import member_learner
from dualstream.solvers.protocols.served_form import classes_of
from dualstream.solvers.rows.columns.spec import age_features
from dualstream.solvers.rows.intercept import width_of

MAX_ROW_S = 1.0
"""Longest estimated time of one row; a new specification beyond it is refused."""

MAX_COLUMNS = 128
"""As in nonlinear/dense_columns.py, whose import compiles kernels."""

_CALL, _ROW, _ENTRY = 2e-5, 5e-7, 1e-8
_PORTFOLIO_CALL, _PORTFOLIO_ROW, _MEMBER_ENTRY = 4e-5, 2e-6, 1.5e-8
_ENTROPY, _ENTROPY_AVERAGE, _PASS, _SCORED = 3.5e-8, 2e-8, 4e-9, 1.5e-8
_STEP, _RETAINED_ROW, _SETTLED = 5e-7, 1e-7, 1e-8
_DRAWN, _CHOICE = 5e-8, 5e-8
_COSINE, _FREQUENCY, _LANDMARK, _SQUARE = 5e-8, 5e-10, 3e-8, 1e-9
_GROUP = 1.5e-7
_CLONE, _CLONE_MEMBER, _CLONED = 5e-4, 2e-4, 1e-8


@dataclass(slots=True)
class Cost:
    """Estimated seconds of one learner. A batch costs `call` + its rows + its entries."""

    call: float = 0.0
    row: float = 0.0
    entry: float = 0.0
    new_class: float = 0.0
    """For each row whose class is new."""
    peak: float = 0.0
    """More for a row that starts periodic work; `row` has its average."""
    worst: float = 0.0
    """The row that costs most, apart from its entries and work that is done only once."""
    is_even: bool = True
    """Is there no row of unknown length? Otherwise `has_long_row` says when one may come."""
    is_plain: bool = True
    """Does the cost of a row follow from its length alone?"""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.call + other.call,
            self.row + other.row,
            self.entry + other.entry,
            self.new_class + other.new_class,
            max(self.peak, other.peak),
            self.worst + other.worst,
            self.is_even and other.is_even,
        )

    def times(self, learners: int) -> "Cost":
        """The cost of several such learners, of which each learns all rows."""
        return Cost(
            self.call * learners,
            self.row * learners,
            self.entry * learners,
            self.new_class,
            self.peak * learners,
            self.worst * learners,
            self.is_even,
        )

    def seconds(self, rows: int, entries: int, new_classes: int = 0) -> float:
        """Estimated time of one call with this batch."""
        return (
            self.call
            + rows * self.row
            + entries * self.entry
            + (new_classes * self.new_class if new_classes else 0.0)
        )


def learning_cost(learner: Learner) -> Cost:
    """The cost of learning the next rows.

    It changes with the number of classes and the members. `has_long_row` says whether there will
    be a longer one.
    """
    return _of(learner.spec, len(classes_of(learner)), _members_of(learner))


def predicting_cost(learner: Learner) -> Cost:
    """The cost of scoring rows."""
    cost = _of(learner.spec, len(classes_of(learner)), _members_of(learner), learns=False)
    return cost + Cost(row=1e-6)  # the row in the answer


def check_cost(spec: Mapping[str, Any]) -> None:
    """Raise InvalidSpec for a resolved specification if one row takes longer than MAX_ROW_S."""
    classes = 2 if spec["task"] == "multiclass" else 0
    scored = [member["algorithm"] for member in shared_algorithms(spec)]
    total = 0.0
    for owner, part in _learners_of(spec):
        if part["algorithm"] in scored:
            part_cost = _of_scorer(part, classes, learns=True).worst
        else:
            part_cost = _of_binary(part).times(classes + 1).worst
        total += part_cost
        if total > MAX_ROW_S:
            field, value = _costly_field(part)
            allowed = f"smaller: one row is estimated to take {total:.2g} s, and the limit is "
            raise InvalidSpec(f"{owner}/{field}", value, f"{allowed}{MAX_ROW_S:g} s")


def making_seconds(spec: Mapping[str, Any]) -> float:
    """Estimated time of making a learner of a resolved specification, without rows.

    Only the frequencies of a map are drawn. Other arrays are zeros, which take no time.
    """
    total = 0.0
    for _, part in _learners_of(spec):
        mapping = part.get("map")
        if mapping is not None and mapping["kind"] == "fourier":
            total += _DRAWN * mapping["components"] * width_of(part["features"])
    return total


def _learners_of(spec: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Specifications with features, of a model or of its members that are learners, and where."""
    members = spec.get("members")
    if not isinstance(members, list | tuple):
        return [("", spec)]
    return [
        (f"/members/{index}", {**member, "features": spec["features"]})
        for index, member in enumerate(members)
        if "algorithm" in member
    ]


def _members_of(learner: Learner) -> list[Mapping[str, Any]] | None:
    members = member_learner(learner)
    return None if members is None else [view.spec for view in members.members()]


def _of(
    spec: Mapping[str, Any],
    classes: int,
    members: Iterable[Mapping[str, Any]] | None,
    learns: bool = True,
) -> Cost:
    scored = shared_algorithms(spec)
    if scored and spec["algorithm"] == "portfolio":
        members = [member for member in members_of(spec) if member not in scored]
    if scored and spec["algorithm"] != "portfolio":
        cost = Cost()
    else:
        cost = _of_binary(spec, members, learns)
    if spec["task"] == "multiclass":
        cost = cost.times(classes + 1)
        for one in scored:
            cost += _of_scorer({**one, "features": spec["features"]}, classes, learns)
        # A row of a new class ends a call, and copies the state of a learner.
        cost.new_class += cost.call + cost.peak
    if age_features(spec):
        cost += Cost(_CALL, 0.0, _ENTRY)
    if groups := spec.get(_HISTORY):
        columns = column_count(groups, spec["task"])
        cost += Cost(_CALL, _GROUP * len(groups) + cost.entry * columns)
    cost.is_plain = cost.is_even and spec["task"] != "multiclass"
    if _GUARD in spec and learns:
        cost.peak += _PASS * width_of(spec["features"]) * (classes + 1)
    return cost


def _of_binary(
    spec: Mapping[str, Any], members: Iterable[Mapping[str, Any]] | None = None, learns: bool = True
) -> Cost:
    """The cost of one model, or of a portfolio with these members."""
    if spec.get("algorithm") == "portfolio":
        return _of_portfolio(spec, members, learns)
    return _of_stages(spec) + _of_learner(spec, learns)


def _of_portfolio(
    spec: Mapping[str, Any], members: Iterable[Mapping[str, Any]] | None, learns: bool
) -> Cost:
    if members is None:
        members = members_of(spec)
    total = Cost(_PORTFOLIO_CALL, _PORTFOLIO_ROW, new_class=_CLONE)
    for member in members:
        if "algorithm" in member:
            total += _of_binary({**member, "features": spec["features"]}, learns=learns)
        else:
            total += Cost(0.0, _ROW / 4, _MEMBER_ENTRY, _CLONE_MEMBER)
    return total


def _of_stages(spec: Mapping[str, Any]) -> Cost:
    cost, mapping = Cost(), spec.get("map")
    for stage in ("scaling", "norm"):
        if spec.get(stage, "none") != "none":
            cost += Cost(_CALL, _ROW, 5 * _ENTRY)
    if mapping is None:
        return cost
    size = mapping["components"]
    if mapping["kind"] == "fourier":
        row = _COSINE * size
        return cost + Cost(_CALL, row, _FREQUENCY * size, worst=row)
    row = _SQUARE * size * size + _LANDMARK * size
    return cost + Cost(_CALL, row, _FREQUENCY * size, worst=row, is_even=False)


def _width_of(spec: Mapping[str, Any]) -> int:
    mapping = spec.get("map")
    return width_of(spec["features"]) if mapping is None else int(mapping["components"])


def _of_learner(spec: Mapping[str, Any], learns: bool) -> Cost:
    """The cost behind the stages."""
    width = _width_of(spec)
    entries = width if spec.get("map") is not None else 0
    cost = Cost(_CALL, _ROW + _ENTRY * entries, _ENTRY, _CLONE + _CLONED * width)
    if spec["algorithm"] == "semiparametric":
        # O(support rows x entries); at most all retained rows are support rows.
        return cost + Cost(row=_LANDMARK * spec["retain"], entry=_ENTRY * spec["retain"])
    if spec["algorithm"] in NONLINEAR:
        return cost + _of_nonlinear(spec, learns)
    if spec["algorithm"] == "rda_plus":
        cost.is_even = False
    if spec["algorithm"] == "sgd_l1" and learns:
        cost += Cost(row=_PASS * width, worst=_PASS * width)
    if spec["algorithm"] in (*SPARSE_STEPS, "rda") and spec.get("average") and learns:
        # The passes of online/lazy_average.py, whose import compiles kernels.
        settling = _SETTLED * width
        cost += Cost(row=settling / max(256, width // 256), peak=settling, worst=settling)
    if spec["algorithm"] != "dual_ascent":
        return cost
    regularizer = spec["regularizer"]
    kind = regularizer if isinstance(regularizer, str) else regularizer["kind"]
    if not learns:
        return cost + Cost(call=_SCORED * width if kind == "entropy" else 0.0)
    is_averaged = bool(spec["average"])
    step, dense = _STEP, 0.0
    if kind == "entropy":
        step += _ENTROPY * width
        dense = (_ENTROPY + _ENTROPY_AVERAGE * is_averaged) * width
    elif kind == "elastic_net" and is_averaged:
        dense = _PASS * width
    replay = spec["replay"]
    row = dense + step * replay.get("steps", 0)
    cost += Cost(row=row, worst=row)
    if "until_gap" in replay:
        evaluation = _PASS * width + _RETAINED_ROW * spec["retain"]
        attempt = replay["max_steps"] * (evaluation + step * replay["every"])
        cost += Cost(row=attempt / replay["every"], peak=attempt, worst=attempt)
    return cost


def _of_scorer(spec: Mapping[str, Any], classes: int, learns: bool) -> Cost:
    """The cost of a learner that scores all classes at once."""
    cost = Cost(_CALL, _ROW + _CHOICE * classes, _ENTRY, _CLONE)
    if spec["algorithm"] == "net":
        units, last = (min(4 * size, 256) for size in spec["units"])
        return cost + Cost(row=5e-10 * units * last + 2e-9 * last * classes, entry=2e-9 * units)
    cost += _of_nonlinear(spec, learns)
    if spec["algorithm"] == "boosted":
        # Twice the trees, and a number for each class in every leaf and for every row of the ring.
        row = cost.row + 6e-8 * classes * learns * spec["renewal"] / 10
        n_rows = min(spec["window"], 2**21 // (classes + 1))
        tree = cost.peak + 5e-9 * n_rows * classes * learns
        is_even = cost.is_even
        cost += Cost(row=row, peak=tree, worst=tree * learns, is_even=is_even)
    return cost


def _of_nonlinear(spec: Mapping[str, Any], learns: bool) -> Cost:
    algorithm = spec["algorithm"]
    if algorithm == "net":
        return Cost(row=2e-6, entry=2e-9 * spec["units"][0])
    if algorithm == "neighbours":
        columns = min(width_of(spec["features"]), MAX_COLUMNS)
        return Cost(row=(1e-9 + 2.5e-10 * columns) * spec["window"])
    if algorithm == "splines":
        return Cost(row=5e-7, entry=1e-7)
    cost = Cost(row=2e-8 * spec["trees"], entry=2e-8)
    if learns:
        tree = 4e-8 * spec["leaves"] * min(spec["window"], 1000) / 10 + 2e-3 * (
            (spec["window"] > 1000) + ("memory" in spec)
        )
        cost += Cost(row=5e-7 * spec["renewal"], peak=tree, worst=tree, is_even=False)
    return cost


def _costly_field(spec: Mapping[str, Any]) -> tuple[str, Any]:
    """The field of a specification that makes a row long, and its value."""
    if any(spec.get("replay", {}).get(name) for name in ("steps", "until_gap")):
        return "replay", spec["replay"]
    if spec.get("map") is not None:
        return "map", spec["map"]
    return "features", spec["features"]
