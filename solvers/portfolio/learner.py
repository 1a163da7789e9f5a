"""Portfolio: the learner of `algorithm: portfolio`.

Every member learns every row, and exponential weights combine their scores. The score of the
portfolio is the log odds of the combined probability; for regression, the prediction. Members see
the raw row, each behind its own feature stages. Learning a batch equals learning its rows one by
one, for the portfolio and for each member. No row is ever rejected: a member that cannot learn a
row is reset, without effect on the others.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import (
    CorruptState,
    InvalidRow,
    InvalidSpec,
    MemberError,
    NotExpressible,
    SolverError,
    UnknownMember,
)
from dualstream.solvers.jit import Floats
from dualstream.solvers.online.table_learner import sigmoids
from dualstream.solvers.portfolio.confidence_sequence import compare
from dualstream.solvers.portfolio.contributions import mixed_contributions
from dualstream.solvers.portfolio.late_kernels import FIRST, SECOND
from dualstream.solvers.portfolio.late_rule import LateRule, first_late, late_parts, served_parts
from dualstream.solvers.portfolio.members import MemberSet, has_weights
from dualstream.solvers.portfolio.pairs import number_columns
from dualstream.solvers.portfolio.presets import NUMBER_PAIRS, Member, members_of
from dualstream.solvers.portfolio.retained_rows import RetainedRows
from dualstream.solvers.portfolio.spec import MAX_MEMBERS, ModelFactory, read_member, read_name
from dualstream.solvers.portfolio.weighting_kernels import N_OUT, ROW_LOSS, SCORE
from dualstream.solvers.portfolio.weighting_state import Rule
from dualstream.solvers.portfolio.wild_labels import (
    ACCEPTED,
    ORDINARY,
    UNWEIGHTED,
    WILD,
    WildLabels,
)
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.curves import Curve
from dualstream.solvers.protocols.explanation import Explanation
from dualstream.solvers.protocols.learner import Outcome, State
from dualstream.solvers.protocols.member_learner import Comparison, MemberView
from dualstream.solvers.protocols.served_form import Form
from dualstream.solvers.protocols.served_weights import ServedWeights, count_nonzeros
from dualstream.solvers.protocols.state_numbers import check_arrays
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.intercept import width_of
from dualstream.solvers.rows.scalar import unknown_label

_PIECE = 2048
"""Rows per piece; the members' scores of a piece are then discarded."""
JOINS_AT = 512
"""Rows after which the values of the columns are known well enough to choose some for pairs."""


class Portfolio:
    """See members.MemberLearner. `spec` is resolved, with task binary or regression.

    Memory in addition to the members: 24 bytes per pair of members, 16,000 bytes per member for its
    last 1,000 rows, and up to four times the retained rows.
    """

    never_rejects = True

    def __init__(
        self, spec: Mapping[str, Any], models: ModelFactory, *, shares: bool = False
    ) -> None:
        """`shares`: members of nonlinear.SHARED are scored from outside, see classes.py.
        Then no member can be added, none of these removed, and no rows are retained.
        """
        self.spec = spec
        self._models, self._shares = models, shares
        self._dim = width_of(spec["features"])
        members = members_of(spec)
        self._members = MemberSet.of(members, spec, models, shares)
        self._rule = self._new_rule(members)
        self._wild = WildLabels()
        self._before: Rule | None = None
        """The rule before the wild labels that it follows now."""
        self._late: LateRule | None = None
        """The second rule, from the first late label on."""
        self._rows = RetainedRows(self._dim, spec["retain"])
        self._samples = 0
        self._promoted: str | None = None

    def _new_rule(self, members: Sequence[Member]) -> Rule:
        spec = self.spec
        return Rule(members, spec["eta"], spec["share"], classes=spec["task"] == "binary")

    def without_rows(self) -> "Portfolio":
        """A portfolio of the present members that has learned nothing; all are active.

        One that joined by itself joins again after as many rows, and so wherever batches end.
        """
        new = Portfolio(self.spec, self._models, shares=self._shares)
        members = self._members.members
        if self.spec.get("number_pairs") and self._promoted != NUMBER_PAIRS["name"]:
            members = [one for one in members if one["name"] != NUMBER_PAIRS["name"]]
        new._members = MemberSet.of(members, self.spec, self._models, self._shares)
        new._rule = new._new_rule(members)
        return new

    # -- learning and scoring --------------------------------------------------------------------

    def learn(self, batch: Batch, outer_scores: Floats | None = None) -> Outcome:
        """See Learner. O(entries K) per row for fused members, plus the cost of the separate
        members.

        given (n, S): the scores of the shared members.
        """
        batch.check_width(self._dim)
        classes = self._rule.classes
        row = unknown_label(batch.labels, classes)
        if row >= 0:
            raise InvalidRow.of_label(row, float(batch.labels[row]), classes)
        n = len(batch)
        if classes and np.count_nonzero(batch.labels) < n:
            batch = batch.with_labels(np.where(batch.labels > 0.0, 1.0, -1.0))
        columns, last = np.empty((2, n)), 0
        # In pieces, so that the scores of all members stay in a cache.
        while last < n:
            first, last = last, min(last + self._rows_of_piece(), n)
            rows = batch if last - first == n else batch[first:last]
            if classes:
                part = None if outer_scores is None else outer_scores[first:last]
                out = self._learn_run(rows, part)
            else:
                out = self._learn_numbers(rows)
            columns[0, first:last], columns[1, first:last] = out[:, SCORE], out[:, ROW_LOSS]
            if self._samples == JOINS_AT and self.spec.get("number_pairs"):
                self._join_number_pairs()
        return Outcome(columns[0], columns[1], batch.weights > 0.0, np.zeros(n, np.bool_))

    def _rows_of_piece(self) -> int:
        """How many of the next rows are learned at once."""
        before = JOINS_AT - self._samples
        return before if 0 < before < _PIECE and self.spec.get("number_pairs") else _PIECE

    def predict_waiting(self, batch: Batch) -> tuple[Floats, Floats]:
        """See protocols/learner.py; rows keep (n, K + 4) numbers, see late_kernels.py."""
        batch.check_width(self._dim)
        scores = self._members.predict(batch)
        parts = served_parts(self._members.names, self._rule, self._late, scores)
        first, second = parts[:, FIRST].copy(), parts[:, SECOND].copy()
        return first if self._mixing is None else self._mixing.mixed(first, second), parts

    def _learn_numbers(self, rows: Batch) -> Floats:
        """Learn rows whose labels are numbers; see wild_labels.py."""
        marks = self._wild.mark(rows.labels, rows.weights)
        if marks is None and self._before is None:
            return self._learn_run(rows)
        if marks is None:
            marks = np.where(rows.weights > 0.0, ORDINARY, UNWEIGHTED)
        out = np.empty((len(rows), N_OUT))
        ends = [*(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(rows)]
        done = 0
        for end in ends:
            run = rows[done:end]
            if marks[done] == WILD:
                out[done:end] = self._follow(run)
            elif marks[done] == ORDINARY and self._before is not None:
                score = self.predict(run[:1])[0]
                self._return()
                out[done:end] = self._learn_run(run)
                out[done, SCORE] = score
                out[done, ROW_LOSS] = 0.5 * (run.labels[0] - score) ** 2
            else:
                if marks[done] == ACCEPTED:
                    self._before = None
                out[done:end] = self._learn_run(run)
            done = end
        return out

    def _learn_run(self, rows: Batch, outer_scores: Floats | None = None) -> Floats:
        """Learn rows by the members, and count them in both rules."""
        parts = late_parts(rows, self._members.names)
        if parts is not None and self._late is None and self._before is None:
            if (first := first_late(parts)) > 0:
                runs = rows[:first], rows[first:]
                return np.concatenate([self._learn_run(run) for run in runs])
            self._late = LateRule.after(self._rule, self.spec["eta"])
        out, raw = self._members.learn(rows, self._rule, outer_scores)
        if self._mixing is not None:
            self._mixing.count(raw, parts, rows, out)
        if not self._shares:
            self._rows.add(rows)
        self._samples += len(rows)
        return out

    @property
    def _mixing(self) -> LateRule | None:
        """The second rule, unless the first one follows wild labels."""
        return self._late if self._before is None else None

    def _follow(self, rows: Batch) -> Floats:
        """Let the rule follow rows with wild labels, which no member learns."""
        if self._before is None:
            self._before = self._rule.copy()
        self._samples += len(rows)
        return self._rule.count(self._members.predict(rows), rows.labels, rows.weights)

    def _return(self) -> None:
        """Return to the rule before the wild labels that it follows now, if it does."""
        if self._before is not None:
            self._rule, self._before = self._before, None

    def share_columns(self, other: "Portfolio") -> None:
        """Share what depends on the rows alone with a portfolio of the same members that has
        learned the same rows, and from now on learns each batch first. Raises CorruptState."""
        described, first = ((p._members.describe(), p._promoted) for p in (self, other))
        if described != first:
            raise CorruptState("the members of the classes differ")
        self._members.share_columns(other._members)

    def predict(self, batch: Batch, outer_scores: Floats | None = None) -> Floats:
        """See Learner: log odds of classes; given (n, S) as in `learn`."""
        batch.check_width(self._dim)
        scores = self._members.predict(batch, outer_scores)
        first = self._rule.mix(scores)
        return first if self._mixing is None else self._mixing.mix(first, scores)

    def explain(self, row: Batch, outer_scores: Floats | None = None) -> Explanation:
        """See protocols/explanation.py, and contributions.py of this package.

        outer_scores  (S,)  the scores of shared members
        """
        row.check_width(self._dim)
        scores, bases, features, parts, values = self._members.explain(row, outer_scores)
        score, base, contributions = mixed_contributions(self._rule, scores, bases, parts)
        if (late := self._mixing) is not None:
            second = mixed_contributions(late.rule, scores, bases, parts)
            score, base, contributions = late.mix_contributions(
                (score, base, contributions), second
            )
        # Members that are not active do not learn, so their past targets are others.
        shown = {
            feature: value
            for index, of_member in enumerate(values)
            if self._rule.is_active(index)
            for feature, value in of_member.items()
        }
        return Explanation.of(score, base, features, contributions, shown)

    def probabilities(self, scores: Floats) -> Floats | None:
        """See Learner."""
        if not self._rule.classes:
            return None
        out = np.empty(len(scores))
        sigmoids(scores, out)
        return out

    @property
    def samples(self) -> int:
        """See Learner."""
        return self._samples

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py."""
        return self._members.has_long_row(rows)

    # -- what it says of itself ------------------------------------------------------------------

    @property
    def names(self) -> Sequence[str]:
        """The names of the members."""
        return self._members.names

    @property
    def heaviest(self) -> str:
        """The member with weights that has the largest share; one without if all are."""
        shares = self._shares_of_members()
        shares[[not has_weights(member) for member in self._members.members]] -= 1.0
        return str(self._members.names[int(np.argmax(shares))])

    @property
    def weights(self) -> Floats:
        """Served weights of the heaviest member. Members have different inputs, so their weights do
        not add."""
        return self.member_weights(self.heaviest)[0]

    @property
    def intercept(self) -> float:
        """See weights."""
        return self.member_served_weights(self.heaviest).intercept

    def served_weights(self) -> list[ServedWeights]:
        """See weights."""
        return [self.member_served_weights(self.heaviest)]

    @property
    def nonzeros(self) -> int:
        """See weights."""
        return count_nonzeros(self.served_weights())

    def certificate(self) -> Certificate | None:
        """None: each dual member has its own, see member_certificate."""
        return None

    def shares(self) -> dict[str, float]:
        """See MemberLearner."""
        return dict(zip(self.names, self._shares_of_members().tolist(), strict=True))

    def members(self) -> list[MemberView]:
        """See MemberLearner."""
        shares, resets = self._shares_of_members(), self._rule.resets
        return [
            replace(
                self._losses_of_members().view(
                    index,
                    member,
                    self._members.has_certificate(index),
                    self._members.max_rows(index),
                ),
                weight=float(shares[index]),
                resets=int(resets[index]),
            )
            for index, member in enumerate(self._members.members)
        ]

    def _shares_of_members(self) -> Floats:
        """(K,): the shares in the prediction."""
        late, shares = self._mixing, self._rule.shares
        return shares if late is None else shares + late.share * (late.rule.shares - shares)

    def _losses_of_members(self) -> Rule:
        """The rule that has the members' losses as they were served."""
        return self._rule if self._late is None else self._late.rule

    @property
    def promoted(self) -> str | None:
        """See MemberLearner."""
        return self._promoted

    def compare(self, a: str, b: str, level: float = 0.95) -> Comparison:
        """See MemberLearner, and confidence_sequence.py."""
        indices = self._index_of(a), self._index_of(b)
        if a == b:
            raise MemberError(f"cannot compare {a!r} with itself")
        rows, total, squares = self._losses_of_members().difference(*indices)
        return compare(a, b, rows, total, squares, self._rule.most, level)

    def member_certificate(self, name: str) -> Certificate | None:
        """See MemberLearner: for the problem sum of the losses + strength |w|^2 / 2."""
        return self._members.certificate(self._index_of(name))

    def member_weights(self, name: str) -> tuple[Floats, float]:
        """See MemberLearner: for features after the member's scaling."""
        served = self.member_served_weights(name)
        weights = np.zeros(served.dim)
        for features, values in served.blocks():
            weights[features] = values
        return weights, served.intercept

    def member_served_weights(self, name: str) -> ServedWeights:
        """See MemberLearner and member_weights."""
        return self._members.served_weights(self._index_of(name))

    def curves(self) -> list[list[Curve]] | None:
        """See protocols/curves.py: of the first member that has curves."""
        for index in range(len(self._members.names)):
            curves = self._members.curves(index)
            if curves is not None:
                return [curves]
        return None

    def member_curves(self, name: str) -> list[Curve] | None:
        """See MemberLearner."""
        return self._members.curves(self._index_of(name))

    def form(self) -> Form:
        """See served_form: the mixture of all active members."""
        names, form_of = self._members.names, cache(self._members.form)
        form = self._rule.form(names, form_of, self._dim)
        if (late := self._mixing) is None:
            return form
        return late.form(form, late.rule.form(names, form_of, self._dim))

    def member_form(self, name: str) -> Form:
        """See MemberLearner."""
        index = self._index_of(name)
        form = self._members.form(index)
        if form is None:
            if self._members.members[index].get("kind") == "stack":
                raise NotExpressible(
                    f"{name!r} combines the other members: export the whole portfolio as onnx"
                )
            raise NotExpressible(f"{name!r} uses no feature")
        return form

    def _index_of(self, name: str) -> int:
        if name not in self._members.names:
            raise UnknownMember(f"there is no member {name!r}")
        return self._members.names.index(name)

    # -- changing the members --------------------------------------------------------------------

    def resolve_member(self, spec: Mapping[str, Any]) -> Member:
        """See MemberLearner."""
        body = {field: value for field, value in spec.items() if field != "name"}
        return read_member(body, self.spec, "", self._models.resolve)

    def check_add(self, spec: Mapping[str, Any]) -> Member:
        """See MemberLearner; returns the member."""
        names = self._members.names
        name = read_name(spec, "", names)
        member = {"name": name} | self.resolve_member(spec)
        if not self._rule.classes and "kind" in member:
            raise InvalidSpec("/kind", member["kind"], "left out: only a model can be added")
        if name in names:
            raise MemberError(f"there is a member {name!r} already")
        if "stack" in {one.get("kind") for one in self._members.members} & {member.get("kind")}:
            raise MemberError("there is a stack already, and one is enough")
        if len(names) >= MAX_MEMBERS:
            raise MemberError(f"there are {len(names)} members, the maximum is {MAX_MEMBERS}")
        self._check_not_promoted()
        return member

    def add_member(self, spec: Mapping[str, Any]) -> str:
        """See MemberLearner: the new member learns the retained rows and is calibrated on them."""
        member = self.check_add(spec)
        self._join(member)
        name: str = member["name"]
        return name

    def _join_number_pairs(self) -> None:
        """Add the member that combines columns of small whole numbers, if there are any."""
        rows, names = self._rows.rows(), self._members.names
        columns = number_columns(rows)
        has_room = NUMBER_PAIRS["name"] not in names and len(names) < MAX_MEMBERS
        if columns and has_room and self._promoted is None:
            steps, y = np.abs(np.diff(rows.labels)), rows.labels
            follow = steps.mean() < np.abs(y - y.mean()).mean()
            base = "last" if follow else "mean"
            self._join({**NUMBER_PAIRS, "base": base, "pairs": columns})

    def _join(self, member: Member) -> None:
        rows = self._rows.rows()
        self._return()
        self._members, scores, resets = self._members.joined(member, self.spec, rows)
        self._change_rules(lambda rule: rule.joined(member, scores, rows, resets))

    def check_remove(self, name: str) -> None:
        """See MemberLearner."""
        self._index_of(name)
        if len(self._members.names) == 1:
            raise MemberError(f"{name!r} is the last member and cannot be removed")
        self._check_not_promoted()

    def remove_member(self, name: str) -> None:
        """See MemberLearner."""
        self.check_remove(name)
        self.drop([name])

    def drop(self, names: Collection[str]) -> None:
        """Remove members."""
        indices = [self._index_of(name) for name in names]
        self._return()
        self._members = self._members.without(*indices)
        self._change_rules(lambda rule: rule.without(*indices))

    def _change_rules(self, change: Callable[[Rule], Rule]) -> None:
        self._rule = change(self._rule)
        if self._late is not None:
            self._late = self._late.with_rule(change(self._late.rule))

    def _check_not_promoted(self) -> None:
        if self._promoted is not None:
            raise MemberError(f"{self._promoted!r} is promoted; demote it first")

    def check_promote(self, name: str) -> int:
        """See MemberLearner; returns the index of the member."""
        index = self._index_of(name)
        if self._members.members[index].get("kind") == "stack":
            raise MemberError(f"{name!r} combines the other members, so it cannot be served alone")
        return index

    def promote(self, name: str) -> None:
        """See MemberLearner: the others do not learn until `demote`."""
        index = self.check_promote(name)
        if self._promoted is not None:
            self.demote()
        self._return()
        for rule in self._rules():
            rule.promote(index)
        self._promoted = name

    def demote(self) -> None:
        """See MemberLearner."""
        if self._promoted is None:
            raise MemberError("no member is promoted")
        self._return()
        for rule in self._rules():
            rule.demote()
        self._promoted = None

    def _rules(self) -> list[Rule]:
        return [self._rule] if self._late is None else [self._rule, self._late.rule]

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner."""
        about = {"members": self._members.describe(), "promoted": self._promoted}
        text = json.dumps(about, sort_keys=True, separators=(",", ":")).encode()
        state: State = {
            "about": np.frombuffer(text, np.uint8).copy(),
            "samples": np.array(self._samples, np.int64),
        }
        parts: dict[str, Any] = {"rule": self._rule, "rows": self._rows, "crew": self._members}
        if not self._rule.classes:
            parts["wild"] = self._wild
        if self._before is not None:
            parts["before"] = self._before
        if self._late is not None:
            parts["late"] = self._late
        for owner, part in parts.items():
            state |= {f"{owner}.{name}": array for name, array in part.state().items()}
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner; the members are those of the state."""
        check_arrays(state, {"samples": (), "about": (np.asarray(state.get("about", [])).size,)})
        try:
            about = json.loads(np.asarray(state["about"]).astype(np.uint8).tobytes())
            described, promoted = about["members"], about["promoted"]
            self._check_members([one["spec"] for one in described])
            members = MemberSet.described(described, self.spec, self._models, self._shares)
        except (ValueError, KeyError, TypeError, AttributeError, SolverError) as error:
            raise CorruptState(f"the members are damaged: {error!r}") from error
        rule = self._new_rule(members.members)
        rows = RetainedRows(self._dim, self.spec["retain"])
        parts: dict[str, Any] = {"rule": rule, "rows": rows, "crew": members}
        wild, before = WildLabels(), None
        if not rule.classes:
            parts["wild"] = wild
        if any(name.startswith("before.") for name in state):
            parts["before"] = before = self._new_rule(members.members)
        for owner, part in parts.items():
            part.restore(_under(f"{owner}.", state))
        late = None
        if any(name.startswith("late.") for name in state):
            late = LateRule.after(rule, self.spec["eta"])
            late.restore(_under("late.", state))
        active = [name for index, name in enumerate(members.names) if rule.is_active(index)]
        if active != (members.names if promoted is None else [promoted]):
            raise CorruptState("the promoted member does not match the active members")
        self._members, self._rule, self._late, self._rows = members, rule, late, rows
        self._wild, self._before = wild, before
        self._samples, self._promoted = int(state["samples"]), promoted

    def _check_members(self, members: Sequence[Member]) -> None:
        """Raise SolverError or ValueError for members that this portfolio cannot have."""
        names = [read_name(member, "", []) for member in members]
        stacks = sum(member.get("kind") == "stack" for member in members)
        if not 1 <= len(set(names)) == len(members) <= MAX_MEMBERS or stacks > 1:
            raise ValueError(f"members named {names}")
        for member in members:
            body = {field: value for field, value in member.items() if field != "name"}
            if self.resolve_member(body) != body:
                raise ValueError(f"{member['name']!r} is not resolved")


def _under(prefix: str, state: Mapping[str, npt.NDArray[Any]]) -> State:
    return {name[len(prefix) :]: a for name, a in state.items() if name.startswith(prefix)}
