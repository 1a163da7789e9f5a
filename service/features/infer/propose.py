"""The specification that is proposed for a sample, checked by reading the sample with it."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualstream.client import BadInput
from dualstream.service.codecs.parsed_rows import RowsBuilder
from dualstream.service.codecs.row_schema import BadRow, RowSchema, pointer_step
from dualstream.service.features.infer.forms import is_number
from dualstream.service.features.infer.history import MAX_GROUPS, ProposedGroup, propose_groups
from dualstream.service.features.infer.kinds import Choice, is_entry_id, is_row_weight, kind_of
from dualstream.service.features.infer.labels import Label, choose_label, leaks
from dualstream.service.features.infer.responses import Inferred, InferredColumn, InferredGroup
from dualstream.service.features.infer.sample import Sample
from dualstream.service.features.infer.sampled_values import Seen, is_none, seen_in
from dualstream.solvers import InvalidSpec, resolve_spec
from dualstream.solvers.rows.columns.spec import MAX_MISSING, own_missing
from dualstream.wire.plural import plural
from dualstream.wire.problem_json import quoted

_DEFAULT_MARKS = ("", "NaN")
_MAX_REFUSED = 0.1
"""Share of the rows that a column may refuse before it is ignored."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Proposal:
    """A specification, and the reason for each column."""

    label: Label
    choices: dict[str, Choice]
    seen: Mapping[str, Seen]
    marks: list[str]
    groups: list[ProposedGroup] = field(default_factory=list)
    has_history: bool = False
    """Does the specification have the groups?"""
    warnings: list[str] = field(default_factory=list)

    @property
    def spec(self) -> dict[str, Any]:
        """The fields `task`, `labels`, `columns` and `history` of a specification."""
        return self.spec_with(self.groups if self.has_history else [])

    def spec_with(self, groups: Sequence[ProposedGroup]) -> dict[str, Any]:
        """The specification with these groups."""
        roles: dict[str, Any] = {"label": self.label.name, "id": None, "weight": None}
        types: dict[str, Any] = {}
        ignored: list[str] = []
        keys = {one.key: one.choice for one in groups}
        for name, (kind, *_) in (self.choices | keys).items():
            if kind in ("id", "weight"):
                roles[kind] = name
            # A key is declared, and `ignore` reads a pattern.
            elif kind == "ignore" and name not in keys and not name.endswith("*"):
                ignored.append(name)
            elif kind != "label":
                types[name] = kind
        columns = roles | {"ignore": ignored, "types": types, "missing": [*self.marks, None]}
        labels = {} if self.label.labels is None else {"labels": self.label.labels}
        history = {"history": [one.group for one in groups]} if groups else {}
        return {"task": self.label.task, **labels, "columns": columns, **history}

    def response(self, rows: int) -> Inferred:
        """The proposal as JSON; `rows` is the number of rows in the sample."""
        columns = [
            InferredColumn(name, choice.kind, choice.reason, self.missing(name))
            for name, choice in self.choices.items()
        ]
        history = [InferredGroup(one.group, one.reason) for one in self.groups]
        return Inferred(self.spec, rows, columns, history, self.warnings)

    def missing(self, name: str) -> int:
        """Number of rows in which a column is missing."""
        own = own_missing({name: self.choices[name].kind}).get(name, [])
        return self.seen[name].without(own).missing


def propose(
    sample: Sample, label: str | None = None, task: str | None = None, history: bool = False
) -> Proposal:
    """What fits the sample: each row that it refuses is in a warning. Raises BadInput.

    `history`: with the groups that are proposed for it.
    """
    seen = seen_in(sample.rows)
    _check_header(seen)
    chosen = choose_label(seen, label, task)
    choices = _choices(seen, chosen)
    marks = _shared_marks(seen, chosen, choices)
    proposal = Proposal(chosen, choices, seen, marks)
    refused = _refused(sample.rows, proposal)
    why = _add_groups(sample.rows, proposal)
    if history:
        refused = _with_history(sample.rows, proposal, refused, why)
    _warn(sample, proposal, refused)
    return proposal


def _add_groups(rows: Rows, proposal: Proposal) -> str:
    """Add the groups that a specification can have together; returns why there are none."""
    groups, why = propose_groups(rows, proposal.choices, proposal.seen, proposal.label.task)
    for one in groups:
        more = [*proposal.groups, one]
        if len(more) <= MAX_GROUPS and _is_valid(proposal.spec_with(more)):
            proposal.groups = more
    return why


def _is_valid(spec: Mapping[str, Any]) -> bool:
    """Are there at most 64 columns, of 256 MB, with names that no column of the rows has?"""
    try:
        resolve_spec(spec)
    except InvalidSpec:
        return False
    return True


def _with_history(
    rows: Rows, proposal: Proposal, refused: dict[str, list[BadRow]], why: str
) -> dict[str, list[BadRow]]:
    """Take the groups over, and what their keys become. Returns the rows that are refused then."""
    if not proposal.groups:
        proposal.warnings.append(f"no history: {why or 'its columns have the names of others'}")
        return refused
    proposal.choices |= {one.key: one.choice for one in proposal.groups}
    proposal.has_history = True
    return _read(_labelled(rows, proposal), proposal, is_last=True)


def _shared_marks(seen: Mapping[str, Seen], label: Label, choices: dict[str, Choice]) -> list[str]:
    """Texts that are missing in all columns; one that is a value of any is left to the others."""
    used = [name for name, choice in choices.items() if choice.kind != "ignore"]
    values = {key for name in used for key in seen[name].counts}
    marks = list(_DEFAULT_MARKS)
    for name in used:
        own = []
        for text in seen[name].nulls:
            if text in values and name != label.name:
                own.append(text)
            elif text not in marks:
                marks.append(text)
        kind = choices[name].kind
        if own and kind not in ("id", "weight"):
            full = {"kind": kind} if isinstance(kind, str) else kind
            extended = full | {"missing": [*full.get("missing", []), *own]}
            choices[name] = choices[name]._replace(kind=extended)
    if len(marks) >= MAX_MISSING:
        raise BadInput(f"{len(marks)} texts look like missing values; the limit is {MAX_MISSING}")
    return marks


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


def _refused(rows: Rows, proposal: Proposal) -> dict[str, list[BadRow]]:
    """Rows that the proposal refuses, by column; a column that refuses many is ignored.

    Rows without a label are not counted. Raises BadInput if another cause refuses a row.
    """
    label, labelled = proposal.label.name, _labelled(rows, proposal)
    for is_last in (False, False, True):
        refused = _read(labelled, proposal, is_last)
        many = [name for name, some in refused.items() if _is_too_many(len(some), labelled)]
        many = [name for name in many if name != label]
        if is_last or not many:
            break
    return refused


def _labelled(rows: Rows, proposal: Proposal) -> Rows:
    label, marks = proposal.label.name, frozenset(proposal.marks)
    return [row for row in rows if not _is_missing(row.get(label), marks)]


def _read(rows: Rows, proposal: Proposal, is_last: bool) -> dict[str, list[BadRow]]:
    refused: dict[str, list[BadRow]] = {}
    builder = _builder(proposal)
    for number, row in enumerate(rows):
        while (bad := _bad_row(builder, number, row)) is not None:
            name = _column_of(bad, proposal)
            refused.setdefault(name, []).append(bad)
            if is_last or name == proposal.label.name:
                break
            if not _is_too_many(len(refused[name]), rows):
                break
            proposal.choices[name] = Choice("ignore", f"does not fit: {bad.reason}")
            builder = _builder(proposal)
    return refused


def _is_too_many(refused: int, rows: Rows) -> bool:
    return refused > _MAX_REFUSED * len(rows)


def _builder(proposal: Proposal) -> RowsBuilder:
    return RowsBuilder(RowSchema(resolve_spec(proposal.spec)), labelled=True)


def _bad_row(builder: RowsBuilder, number: int, row: Mapping[str, Any]) -> BadRow | None:
    try:
        builder.add_flat(number, row)
    except BadRow as bad:
        return bad
    return None


def _column_of(bad: BadRow, proposal: Proposal) -> str:
    """The column that refuses a row. Raises BadInput for a row without such a column."""
    for name, choice in proposal.choices.items():
        if choice.kind != "ignore" and bad.pointer == f"/{pointer_step(name[:50])}":
            return name
    raise BadInput(f"no proposal: a row is refused: {bad.reason}")


def _is_missing(value: Any, marks: frozenset[str]) -> bool:
    return is_none(value) or (isinstance(value, str) and value in marks)


def _check_header(seen: Mapping[str, Seen]) -> None:
    """Raise BadInput if the names of the columns look like a row: a CSV file without a header."""
    numbers = [number for number in map(_as_number, seen) if number is not None]
    is_range = len(numbers) == len(seen) and numbers == sorted(numbers)
    if numbers and not is_range and all(map(_is_value, seen.values())):
        shown = ", ".join(list(seen)[:5])
        raise BadInput(
            f"the first record looks like a row, not like names of columns: {shown};"
            " add a header line"
        )


def _is_value(seen: Seen) -> bool:
    """Could the name of the column be one of its values?"""
    return seen.name in seen.counts or (
        _as_number(seen.name) is not None and all(map(is_number, seen.examples))
    )


def _as_number(text: str) -> float | None:
    return float(text) if is_number(text) else None


def _warn(sample: Sample, proposal: Proposal, refused: Mapping[str, list[BadRow]]) -> None:
    label = proposal.seen[proposal.label.name]
    types = proposal.spec["columns"]["types"]
    proposal.warnings += leaks(sample.rows, proposal.label, proposal.seen, list(types))
    proposal.warnings += [one.warning for one in proposal.choices.values() if one.warning]
    for name, some in refused.items():
        why = some[0].reason
        why = why if quoted(name) in why else f"column {quoted(name)}: {why}"
        rows = plural(len(some), "row")
        proposal.warnings.append(f"{rows} of the sample will be refused, for example: {why}")
    if label.missing:
        have = "has no label and is" if label.missing == 1 else "have no label and are"
        reason = f"{label.missing:,} of {plural(label.rows, 'row')} {have} refused"
        proposal.warnings.append(reason)
    if sample.bad:
        rows = plural(len(sample.bad), "row")
        proposal.warnings.append(f"{rows} cannot be read, such as {sample.bad[0]}")
    if not types:
        proposal.warnings.append("no column is left as a feature")
