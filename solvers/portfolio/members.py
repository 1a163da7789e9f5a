"""MemberSet: the members of a portfolio, fused in one kernel or learning separately."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState, NotExpressible
from dualstream.solvers.jit import Floats, Ints
from dualstream.solvers.nonlinear import NONLINEAR, SHARED
from dualstream.solvers.portfolio.fused_members import Blueprint, Fused
from dualstream.solvers.portfolio.presets import Member
from dualstream.solvers.portfolio.single_member import KindMember, ModelMember
from dualstream.solvers.portfolio.spec import ModelFactory, model_spec, reach_of
from dualstream.solvers.portfolio.weighting_state import Rule
from dualstream.solvers.protocols.certificate import Certificate
from dualstream.solvers.protocols.curves import Curve
from dualstream.solvers.protocols.learner import State
from dualstream.solvers.protocols.served_form import Form
from dualstream.solvers.protocols.served_weights import ServedWeights
from dualstream.solvers.rows.batch import Batch
from dualstream.solvers.rows.intercept import width_of

# Values of `part` in a state; "alone" is a separate member, "shared" one that others score.
_FUSED, _SEPARATE, _SHARED = "fused", "alone", "shared"
_OF_RULE = ("prior", "stack")
"""Kinds whose score the weighting rule computes."""


class MemberSet:
    """Members in order. Adding or removing one creates another set that shares the member
    objects.
    """

    def __init__(
        self,
        dim: int,
        members: Sequence[Member],
        fused: Fused | None,
        fused_indices: Sequence[int],
        separate: Mapping[int, ModelMember | KindMember],
        models: ModelFactory,
        shared_indices: Sequence[int] = (),
    ) -> None:
        self.members = list(members)
        self.names = [member["name"] for member in members]
        self._dim = dim
        self._models = models
        self._fused = fused
        self._fused_indices = np.array(fused_indices, np.int64)
        self._separate = dict(separate)
        self._shared_indices = list(shared_indices)

    @classmethod
    def of(
        cls, members: Sequence[Member], whole: Mapping[str, Any], models: ModelFactory, shares: bool
    ) -> "MemberSet":
        """New members of the portfolio `whole`; those that can be fused are.

        With `shares`, members of SHARED get their scores from outside: see classes.py.
        """
        parts = [_part_of(member, shares) for member in members]
        return cls._of_parts(members, parts, whole, models)

    @classmethod
    def described(
        cls,
        described: Sequence[Mapping[str, Any]],
        whole: Mapping[str, Any],
        models: ModelFactory,
        shares: bool,
    ) -> "MemberSet":
        """Untrained members from the output of `describe`. Raises CorruptState if they
        contradict.
        """
        members = [dict(one["spec"]) for one in described]
        parts = [one["part"] for one in described]
        for member, part in zip(members, parts, strict=True):
            described_part = _part_of(member, shares)
            if part != described_part and (
                part != _SEPARATE or described_part in (*_OF_RULE, _SHARED)
            ):
                raise CorruptState(f"{member['name']!r} cannot be {part!r}")
        return cls._of_parts(members, parts, whole, models)

    @classmethod
    def _of_parts(
        cls,
        members: Sequence[Member],
        parts: Sequence[str],
        whole: Mapping[str, Any],
        models: ModelFactory,
    ) -> "MemberSet":
        indices = [index for index, part in enumerate(parts) if part == _FUSED]
        fused = None
        if indices:
            plan = Blueprint([members[index] for index in indices])
            fused = Fused(plan, _dim(whole), whole["retain"], reach_of(whole))
        separate = {
            index: _begin(members[index], whole, models)
            for index, part in enumerate(parts)
            if part == _SEPARATE
        }
        shared = [index for index, part in enumerate(parts) if part == _SHARED]
        return cls(_dim(whole), members, fused, indices, separate, models, shared)

    def describe(self) -> list[dict[str, Any]]:
        """Specification of each member, and whether it is fused, separate or a prior."""
        return [
            {"spec": member, "part": self._part(index)} for index, member in enumerate(self.members)
        ]

    def _part(self, index: int) -> str:
        if index in self._separate:
            return _SEPARATE
        return _part_of(self.members[index], index in self._shared_indices)

    # -- learning and scoring --------------------------------------------------------------------

    def learn(
        self, batch: Batch, rule: Rule, outer_scores: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Learn rows with labels -1 and 1 by all active members; the outputs of the rule for each
        row, (n, N_OUT), and the raw scores of all members, (n, K).

        given (n, S): the scores of the shared members, if there are any.
        """
        scores = np.zeros((len(batch), len(self.members)))
        if outer_scores is not None:
            scores[:, self._shared_indices] = outer_scores
        resets: list[tuple[int, int]] = []
        for index, member in self._separate.items():
            if rule.is_active(index):
                scores[:, index], rows = member.learn(batch)
                resets += [(row, index) for row in rows]
        if not resets:
            return self._apply(batch, scores, rule), scores
        parts, done = [], 0
        for row, index in sorted(resets):
            if row >= done:
                parts.append(self._apply(batch[done : row + 1], scores[done : row + 1], rule))
                done = row + 1
            rule.reset_member(index)
        parts.append(self._apply(batch[done:], scores[done:], rule))
        return np.concatenate(parts), scores

    def _apply(self, batch: Batch, scores: Floats, rule: Rule) -> Floats:
        """Apply the weighting rule to rows, given the scores (n, K) of the separate members."""
        if self._fused is None:
            return rule.count(scores, batch.labels, batch.weights)
        return self._fused.learn(batch, self._fused_indices, scores, rule)

    def share_columns(self, other: "MemberSet") -> None:
        """See Portfolio."""
        for index, member in self._separate.items():
            one = other._separate[index]
            if isinstance(member, ModelMember) and isinstance(one, ModelMember):
                member.share_columns(one)

    def predict(self, batch: Batch, outer_scores: Floats | None = None) -> Floats:
        """Raw scores (n, K); given (n, S) as in `learn`."""
        scores = np.zeros((len(batch), len(self.members)))
        if outer_scores is not None:
            scores[:, self._shared_indices] = outer_scores
        if self._fused is not None:
            scores[:, self._fused_indices] = self._fused.predict(batch)
        for index, member in self._separate.items():
            scores[:, index] = member.predict(batch)
        return scores

    def explain(
        self, row: Batch, outer_scores: Floats | None = None
    ) -> tuple[Floats, Floats, Ints, Floats, list[Mapping[int, float]]]:
        """Raw scores (K,) of one row, bases (K,), features (n,), contributions (K, n), and the
        values of features that each member adds.

        See protocols/explanation.py. A member without contributions has its score as the base; so
        have shared members, whose scores (S,) are given.
        """
        scores = np.zeros(len(self.members))
        if outer_scores is not None:
            scores[self._shared_indices] = outer_scores
        bases = scores.copy()
        parts: list[tuple[Ints, Ints, Floats]] = []
        """Members, features and contributions (members, features)."""
        values: list[Mapping[int, float]] = [{} for _ in self.members]
        if self._fused is not None:
            at = self._fused_indices
            scores[at], bases[at], features, contributions = self._fused.explain(row)
            parts.append((at, features, contributions))
        for index, member in self._separate.items():
            one = member.explain(row)
            scores[index], bases[index], values[index] = one.score, one.base, one.values
            parts.append((np.array([index]), one.features, one.contributions[None, :]))
        scores[~np.isfinite(scores)] = np.nan
        listed = [features for _, features, _ in parts]
        every = np.unique(np.concatenate(listed)) if listed else np.empty(0, np.int64)
        whole = np.zeros((len(self.members), len(every)))
        for rows, features, contributions in parts:
            whole[np.ix_(rows, np.searchsorted(every, features))] = contributions
        return scores, bases, every, whole, values

    def curves(self, index: int) -> list[Curve] | None:
        """Curves of a member, see protocols/curves.py; None for a member that has none."""
        return self._separate[index].curves() if index in self._separate else None

    def has_long_row(self, rows: int) -> bool:
        """See protocols/learner.py."""
        return any(member.has_long_row(rows) for member in self._separate.values())

    # -- what a member says of itself ------------------------------------------------------------

    def has_certificate(self, index: int) -> bool:
        """Whether the member has a dual."""
        member = self.members[index]
        return member.get("kind", member.get("algorithm")) == "dual_ascent"

    def max_rows(self, index: int) -> int | None:
        """See MemberView."""
        member = self._separate.get(index)
        return member.max_rows if isinstance(member, ModelMember) else None

    def certificate(self, index: int) -> Certificate | None:
        """See MemberLearner."""
        if index in self._separate:
            return self._separate[index].certificate()
        at = self._index_among_fused(index)
        return None if at is None or self._fused is None else self._fused.certificate(at)

    def served_weights(self, index: int) -> ServedWeights:
        """See MemberLearner; none for a prior, and for a shared member."""
        if index in self._separate:
            return self._separate[index].served_weights()
        at = self._index_among_fused(index)
        if at is None or self._fused is None:
            return ServedWeights(self._dim, 0.0, lambda: iter(()))
        return self._fused.served_weights(at)

    def form(self, index: int) -> Form | None:
        """Form of a member's raw score; None for a prior or a stack. Raises NotExpressible."""
        if index in self._shared_indices:
            algorithm = self.members[index]["algorithm"]
            raise NotExpressible(
                f"no export format has {algorithm} models that several classes share, as member"
                f" {self.members[index]['name']!r} is"
            )
        if index in self._separate:
            return self._separate[index].form()
        at = self._index_among_fused(index)
        return None if at is None or self._fused is None else self._fused.form(at)

    def _index_among_fused(self, index: int) -> int | None:
        matches = np.flatnonzero(self._fused_indices == index)
        return int(matches[0]) if len(matches) else None

    # -- changing the list -----------------------------------------------------------------------

    def joined(
        self, member: Member, whole: Mapping[str, Any], rows: Batch
    ) -> tuple["MemberSet", Floats, list[int]]:
        """The set with one more member that has learned these rows, and the results of its
        `learn`.
        """
        scores, resets = np.zeros(len(rows)), list[int]()
        separate: dict[int, ModelMember | KindMember] = dict(self._separate)
        if _part_of(member, False) not in _OF_RULE:
            new_member = _begin(member, whole, self._models)
            scores, resets = new_member.learn(rows)
            separate[len(self.members)] = new_member
        members = [*self.members, member]
        indices = self._fused_indices.tolist()
        return (
            MemberSet(self._dim, members, self._fused, indices, separate, self._models),
            scores,
            resets,
        )

    def without(self, *indices: int) -> "MemberSet":
        """The set without some members."""
        kept = [index for index in range(len(self.members)) if index not in indices]
        new = {index: at for at, index in enumerate(kept)}
        fused, in_fused = self._fused, self._fused_indices.tolist()
        leaving = [at for at, index in enumerate(in_fused) if index not in new]
        if fused is not None and leaving:
            fused = fused.without(*leaving) if len(leaving) < len(fused.members) else None
        return MemberSet(
            self._dim,
            [self.members[index] for index in kept],
            fused,
            [new[index] for index in in_fused if index in new],
            {new[index]: one for index, one in self._separate.items() if index in new},
            self._models,
            [new[index] for index in self._shared_indices if index in new],
        )

    # -- state -----------------------------------------------------------------------------------

    def state(self) -> State:
        """See Learner: arrays of the fused members, and of each separate member under its index."""
        state: State = {}
        if self._fused is not None:
            state |= {f"fused.{name}": array for name, array in self._fused.state().items()}
        for index, member in self._separate.items():
            state |= {f"{index}.{name}": array for name, array in member.state().items()}
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """See Learner; only for an untrained set, which is discarded if this fails."""
        owners: dict[str, Any] = {str(index): one for index, one in self._separate.items()}
        if self._fused is not None:
            owners["fused"] = self._fused
        parts: dict[str, State] = {owner: {} for owner in owners}
        for name, array in state.items():
            owner, _, own_name = name.partition(".")
            if owner in parts:
                parts[owner][own_name] = np.asarray(array)
        for owner, one in owners.items():
            one.restore(parts[owner])


def has_weights(member: Mapping[str, Any]) -> bool:
    """Whether a member is linear: priors, stacks and the learners of solvers/nonlinear are not."""
    if "kind" in member:
        return member["kind"] not in _OF_RULE
    return member["algorithm"] not in NONLINEAR


def _part_of(member: Mapping[str, Any], shares: bool) -> str:
    if "kind" not in member:
        return _SHARED if shares and member["algorithm"] in SHARED else _SEPARATE
    kind = str(member["kind"])
    if kind in _OF_RULE:
        return kind
    return _SEPARATE if "pairs" in member else _FUSED


def _begin(
    member: Member, whole: Mapping[str, Any], models: ModelFactory
) -> ModelMember | KindMember:
    if "kind" in member:
        return KindMember(member, _dim(whole), whole["retain"], reach_of(whole))
    return ModelMember(model_spec(member, whole), models.make)


def _dim(whole: Mapping[str, Any]) -> int:
    return width_of(whole["features"])
