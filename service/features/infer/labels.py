"""The label of a sample, its task, and columns that give the label away."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dualstream.client import BadInput
from dualstream.service.codecs.row_schema import BadRow, RowSchema
from dualstream.service.codecs.text_fields import label_of
from dualstream.service.features.infer.forms import Form, is_number, is_whole
from dualstream.service.features.infer.kinds import parts_of_name
from dualstream.service.features.infer.sampled_values import FEW_ROWS, Seen, categories_of, key_of
from dualstream.solvers import resolve_spec
from dualstream.solvers.rows import class_names
from dualstream.solvers.rows.columns.values import as_number
from dualstream.wire.plural import plural
from dualstream.wire.text_values import nfc

TASKS = ("binary", "multiclass", "regression")
_NAMES = (
    "y label target class outcome clicked click converted churned churn fraud is_fraud survived"
    " is_spam spam response labels result"
).split()
_CLASS_NAMES = frozenset("label class target outcome category kind type".split())
_POSITIVE = frozenset("yes true t y 1 positive pos spam fraud churn churned bad malignant".split())
_NEGATIVE = frozenset("no false f n 0 negative neg ham none normal good benign".split())
_MAX_NUMBERED = 20
"""Maximum number of different whole numbers that are classes, not quantities."""
_BINARY = RowSchema(resolve_spec({}))


@dataclass(slots=True)
class Label:
    """A label and its task."""

    name: str
    task: str
    labels: list[str] | None
    """The negative and the positive text."""
    reason: str


def choose_label(
    columns: Mapping[str, Seen], name: str | None = None, task: str | None = None
) -> Label:
    """The label's column and its task, as given or by names and values. Raises BadInput."""
    if name is not None:
        name = nfc(name)
        if name not in columns:  # a CSV header may have blanks after its commas
            name = next((one for one in columns if one.strip() == name), name)
        if name not in columns:
            raise BadInput(f"there is no column {name!r}; the columns are {_listed(columns)}")
        return label_of_task(columns[name], task)
    by_name = {one.strip().lower(): one for one in reversed(list(columns))}
    named = [by_name[one] for one in _NAMES if one in by_name]
    if named:
        return _with_reason(label_of_task(columns[named[0]], task), "named as a label", named[1:])
    pairs = [one for one, seen in columns.items() if len(seen.counts) == 2 and not seen.missing]
    if len(pairs) == 1:
        label = label_of_task(columns[pairs[0]], task)
        return _with_reason(label, "the only column of two values", [])
    few = [one for one, seen in columns.items() if 2 < len(seen.counts) <= 10 and not seen.missing]
    raise BadInput(
        "no column is named as a label; name one as `label`."
        + (f" Two values: {_listed(pairs)}." if pairs else "")
        + (f" Few values: {_listed(few)}." if few else "")
        + ("" if pairs or few else f" The columns are {_listed(columns)}.")
    )


def _with_reason(label: Label, reason: str, others: Sequence[str]) -> Label:
    label.reason = f"{reason}; {label.reason}"
    if others:
        label.reason += f"; it may also be {_listed(others)}: name it as `label`"
    return label


def label_of_task(seen: Seen, task: str | None) -> Label:
    """The label with its task, or with a given one. Raises BadInput if the values do not fit."""
    if not seen.counts:
        raise BadInput(f"the label {seen.name!r} is always missing; name another as `label`")
    fitting = _without_rare_texts(seen)
    pair = _pair_of(fitting)
    if task is None:
        task = _task_of(fitting, pair)
    if task != "multiclass":
        seen = fitting
    distinct = len(seen.counts)
    reason = f"{distinct:,} distinct values"
    labels = None
    if task == "binary":
        if not pair:
            has = plural(distinct, "value")
            raise BadInput(f"the label {seen.name!r} has {has}; a binary one has two")
        labels = pair if isinstance(pair, list) else None
        reason = f"negative {labels[0]!r}, positive {labels[1]!r}" if labels else "true and false"
    elif task == "regression" and not seen.all_are(is_number):
        big = seen.of(Form.BIG, Form.HUGE)
        what = (
            f"numbers that are too large, such as {big[0]}" if big else "values that are no numbers"
        )
        raise BadInput(f"the label {seen.name!r} has {what}: not a regression")
    elif task == "multiclass" and (
        distinct > class_names.MAX_CLASSES or not seen.all_are(_is_class)
    ):
        raise BadInput(f"the label {seen.name!r} has {plural(distinct, 'value')}: not classes")
    if distinct == 1:
        reason = "one value in the sample; give more rows"
    elif task == "multiclass" and seen.all_are(is_number):
        reason += "; if they are quantities: `task` regression"
    return Label(seen.name, task, labels, f"{task}: {reason}")


def _task_of(seen: Seen, pair: bool | list[str]) -> str:
    """The task that fits the values. Raises BadInput if they are as different as texts."""
    distinct, rows = len(seen.counts), len(seen.values)
    if pair:
        return "binary"
    if not seen.all_are(is_number):
        if huge := seen.of(Form.HUGE):
            reason = f"has numbers beyond 1e100, such as {huge[0]}, and cannot be the label"
            raise BadInput(f"column {seen.name!r} {reason}; scale them")
        if rows >= FEW_ROWS and distinct > rows / 2:
            reason = f"has {distinct:,} different texts in {rows:,} rows and cannot be the label"
            raise BadInput(f"column {seen.name!r} {reason}; name another as `label`")
        return "multiclass"
    is_few = seen.all_are(is_whole) and distinct <= _MAX_NUMBERED and rows >= 5 * distinct
    if not is_few:
        return "regression"
    numbers = sorted(int(as_number("", one)) for one in seen.examples)
    counts_up = numbers[0] in (-1, 0, 1) and numbers[-1] - numbers[0] == distinct - 1
    is_named = not _CLASS_NAMES.isdisjoint(parts_of_name(seen.name))
    return "multiclass" if counts_up or is_named or distinct == 2 else "regression"


def _pair_of(seen: Seen) -> bool | list[str]:
    """Two labels as [negative, positive]; True if a binary model takes them without `labels`."""
    if not seen.all_are(_is_class):
        return False
    try:
        sides = [_BINARY.label(_as_parsed(one)) for one in seen.examples]
        if len(sides) == len(set(sides)):
            return True
    except BadRow:
        pass
    is_measured = seen.all_are(is_number) and not seen.all_are(is_whole)
    if len(seen.counts) != 2 or is_measured:
        return False
    texts = [one if isinstance(one, str) else key_of(one) for one in seen.examples]
    if seen.all_are(is_number):
        return sorted(texts, key=lambda one: as_number("", one))
    first, second = sorted(texts, key=lambda one: (-seen.counts[key_of(one)], one))
    return [second, first] if _is_positive(first, second) else [first, second]


def _without_rare_texts(seen: Seen) -> Seen:
    """The label without the texts, and too large numbers, among nine of ten numbers or booleans.

    Their rows are refused.
    """
    texts = seen.of(Form.MAYBE_NULL, Form.FORMATTED, Form.DATE, Form.TEXT, Form.BIG, Form.HUGE)
    typed = seen.rows_of(Form.NUMBER, Form.BOOLEAN)
    return seen.without(texts) if texts and typed >= 0.9 * len(seen.values) else seen


def _as_parsed(value: Any) -> Any:
    return label_of(value, is_named=False) if isinstance(value, str) else value


def _is_positive(first: str, second: str) -> bool:
    """Does the first of two texts name the positive class? By default it is the rarer one."""
    one, other = first.strip().lower(), second.strip().lower()
    if one in _POSITIVE or other in _NEGATIVE:
        return True
    if one.startswith(">") and other.startswith("<"):
        return True
    return other in (f"not {one}", f"no {one}", f"non-{one}", f"not_{one}", f"no_{one}")


def _is_class(value: Any) -> bool:
    return isinstance(value, str | bool | int | float) and len(str(value)) <= 1024


def leaks(
    rows: Sequence[Mapping[str, Any]], label: Label, columns: Mapping[str, Seen], names: list[str]
) -> list[str]:
    """Warnings of columns that alone tell every label of the sample."""
    present = {name: categories_of(rows, columns[name]) for name in [label.name, *names]}
    labels = present.pop(label.name)
    leaking = []
    for name, keys in present.items():
        both = [(key, y) for key, y in zip(keys, labels, strict=True) if y is not None]
        pairs = [(key, y) for key, y in both if key is not None]
        if _decides(pairs):
            what = f"column {name!r} alone gives the label in all {len(pairs):,} rows that have it"
        elif _decides([(str(key is None), y) for key, y in both]):
            what = f"whether column {name!r} is missing gives the label in all {len(both):,} rows"
        else:
            continue
        leaking.append(f"{what}; if it is not known when you predict, set its type to `ignore`")
    return leaking


def _decides(pairs: Sequence[tuple[str, str | None]]) -> bool:
    """Has each value one label, and each one occurs twice or more on average?"""
    labels: dict[str, str | None] = {}
    for key, y in pairs:
        if labels.setdefault(key, y) != y:
            return False
    is_known_often = len(pairs) > FEW_ROWS and len(labels) <= len(pairs) / 2
    return is_known_often and len(set(labels.values())) > 1


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 10} more" if len(listed) > 10 else ""
    return f"{', '.join(listed[:10])}{more}"
