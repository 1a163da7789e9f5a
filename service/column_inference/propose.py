"""The specification that is proposed for a sample, checked by reading the sample with it."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualstream.client import BadInput
from dualstream.service.codecs.parsed_rows import RowsBuilder
from dualstream.service.codecs.row_schema import BadRow, RowSchema, pointer_step
from dualstream.service.column_inference.kinds import Choice, is_entry_id, is_row_weight, kind_of
from dualstream.service.column_inference.labels import Label, choose_label, leaks
from dualstream.service.column_inference.sample import Sample
from dualstream.service.column_inference.sampled_values import (
    Seen,
    is_missing,
    missing_marks,
    seen_in,
)
from dualstream.solvers import resolve_spec
from dualstream.wire.responses import InferredColumn

_DEFAULT_MARKS = ("", "NaN")
_MAX_MARKS = 90

Rows = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Proposal:
    """A specification, and the reason for each column."""

    label: Label
    choices: dict[str, Choice]
    seen: Mapping[str, Seen]
    marks: list[str]
    warnings: list[str] = field(default_factory=list)

    @property
    def spec(self) -> dict[str, Any]:
        """The fields `task`, `labels` and `columns` of a specification."""
        roles: dict[str, Any] = {"label": self.label.name, "id": None, "weight": None}
        types: dict[str, Any] = {}
        ignored: list[str] = []
        for name, (kind, _) in self.choices.items():
            if kind in ("id", "weight"):
                roles[kind] = name
            elif kind == "ignore" and not name.endswith("*"):  # as `ignore` reads a pattern
                ignored.append(name)
            elif kind != "label":
                types[name] = kind
        columns = roles | {"ignore": ignored, "types": types, "missing": [*self.marks, None]}
        labels = {} if self.label.labels is None else {"labels": self.label.labels}
        return {"task": self.label.task, **labels, "columns": columns}

    @property
    def columns(self) -> list[InferredColumn]:
        """All columns, in the order of the sample."""
        return [
            InferredColumn(name, choice.kind, choice.reason, self.seen[name].missing)
            for name, choice in self.choices.items()
        ]


def propose(sample: Sample, label: str | None = None, task: str | None = None) -> Proposal:
    """What fits the sample: no row of it is refused that has a label. Raises BadInput."""
    rows = sample.rows
    # Each column in turn decides what is missing in it; all columns share the marks.
    found = missing_marks(seen_in(rows, ()).values())
    marks = list(dict.fromkeys([*_DEFAULT_MARKS, *found]))
    if len(marks) > _MAX_MARKS:
        raise BadInput(f"{len(marks)} texts look like missing values; the limit is {_MAX_MARKS}")
    seen = seen_in(rows, marks)
    chosen = choose_label(seen, label, task)
    proposal = Proposal(chosen, _choices(seen, chosen), seen, marks)
    _ignore_what_is_refused(rows, proposal)
    _warn(sample, proposal)
    return proposal


def _choices(seen: Mapping[str, Seen], label: Label) -> dict[str, Choice]:
    choices: dict[str, Choice] = {}
    names = sorted(seen)
    for name, one in seen.items():
        taken = {choice.kind for choice in choices.values() if isinstance(choice.kind, str)}
        if name == label.name:
            choices[name] = Choice("label", label.reason)
        elif "id" not in taken and is_entry_id(one):
            choices[name] = Choice("id", "a different one in each row: each is learned once")
        elif "weight" not in taken and is_row_weight(one):
            choices[name] = Choice("weight", "named as the weight of the row")
        else:
            choice = kind_of(one)
            # `ignore` covers the columns of the object that it is in other rows, too.
            if choice.kind != "ignore" or not _is_owner(name, names):
                choices[name] = choice
    return choices


def _is_owner(name: str, names: Sequence[str]) -> bool:
    """Is there a column in an object of this name? `names` are all columns, sorted."""
    owned = f"{name}."
    at = bisect_left(names, owned)
    return at < len(names) and names[at].startswith(owned)


def _ignore_what_is_refused(rows: Rows, proposal: Proposal) -> None:
    """Ignore columns for which a row of the sample is refused. Raises BadInput if that fails."""
    label, marks = proposal.label.name, frozenset(proposal.marks)
    labelled = [row for row in rows if not is_missing(row.get(label), marks)]
    first = 0
    while (found := _first_refused(labelled, first, proposal.spec)) is not None:
        first, refused = found
        names = [
            name
            for name, choice in proposal.choices.items()
            if choice.kind not in ("label", "ignore")
            and refused.pointer == f"/{pointer_step(name[:50])}"
        ]
        if not names:
            raise BadInput(f"no proposal: a row is refused: {refused.reason}")
        for name in names:
            proposal.choices[name] = Choice("ignore", f"does not fit: {refused.reason}")


def _first_refused(rows: Rows, first: int, spec: Mapping[str, Any]) -> tuple[int, BadRow] | None:
    """The first refused row from `first` on, and why: the rows before it lost columns at most."""
    builder = RowsBuilder(RowSchema(resolve_spec(spec)), labelled=True)
    for number in range(first, len(rows)):
        try:
            builder.add_flat(number, rows[number])
        except BadRow as bad:
            return number, bad
    return None


def _warn(sample: Sample, proposal: Proposal) -> None:
    label = proposal.seen[proposal.label.name]
    types = proposal.spec["columns"]["types"]
    proposal.warnings += leaks(sample.rows, proposal.label, proposal.seen, list(types))
    if label.missing:
        reason = f"{label.missing:,} of {label.rows:,} rows have no label and are refused"
        proposal.warnings.append(reason)
    if sample.bad:
        count = len(sample.bad)
        proposal.warnings.append(f"{count:,} rows cannot be read, such as {sample.bad[0]}")
    if not types:
        proposal.warnings.append("no column is left as a feature")
