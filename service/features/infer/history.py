"""Groups of a history for a sample: keys that return, the time of the rows, and a number."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log
from statistics import median
from time import time
from typing import Any, NamedTuple

from dualstream.service.codecs.row_schema import MOST_AHEAD_S
from dualstream.service.features.infer.forms import Form, is_time, is_whole
from dualstream.service.features.infer.kinds import TIME_WORDS, Choice, ends_with, parts_of_name
from dualstream.service.features.infer.sampled_values import FEW_ROWS, Seen, categories_of
from dualstream.solvers.history.spec import half_life_seconds
from dualstream.solvers.rows.columns.spec import LONGEST_NAME, name_of, own_missing
from dualstream.solvers.rows.columns.values import as_time, seconds_of

MAX_GROUPS = 4
_KEY_WORDS = frozenset(
    "id uuid guid card account iban customer client user member buyer seller shop store merchant"
    " terminal device sensor machine meter station host ip session player driver vehicle car plane"
    " tailnum carrier airline airport origin destination patient symbol ticker product item sku"
    " sender receiver recipient branch".split()
)
_NOT_KEY_WORDS = TIME_WORDS | frozenset("hour minute weekday period".split())
_VALUE_WORDS = frozenset(
    "amount price value total cost sum paid payment fare temperature load power".split()
)
_MIN_KEYS = 10
"""Distinct values from which a column is a key without being named as one."""
_MANY_KEYS = 200
"""Distinct values of a key that is no feature of its own: one weight for each knows little."""
_RETURNING = 1 / 3
"""Share of the rows whose key has to be in an earlier row."""
_IN_ORDER = 0.9
"""Share of the consecutive rows that have to be in the order of their times."""
_HALF_LIVES = (
    "1s 2s 5s 10s 30s 1m 2m 5m 10m 30m 1h 2h 6h 12h 1d 3d 7d 14d 30d 90d 180d 365d 730d".split()
)

Rows = Sequence[Mapping[str, Any]]


class ProposedGroup(NamedTuple):
    """A group of `history`, and what its key becomes when the history is taken."""

    group: dict[str, Any]
    reason: str
    choice: Choice

    @property
    def key(self) -> str:
        return str(self.group["by"])


class _Times(NamedTuple):
    name: str
    seconds: list[float | None]


def propose_groups(
    rows: Rows, choices: Mapping[str, Choice], seen: Mapping[str, Seen], task: str
) -> tuple[list[ProposedGroup], str]:
    """Groups, the most useful first; without any the reason."""
    columns = {name: seen[name].without(_own_missing(name, choices)) for name in choices}
    timed = [one for one, choice in choices.items() if _kind(choice) == "time"]
    if not timed:
        return [], "there is no column of times"
    times = _time_of_rows(rows, [columns[name] for name in timed])
    if times is None:
        return [], f"the rows are not in the order of {' or '.join(timed)}"
    keys = [columns[name] for name, choice in choices.items() if _is_key(columns[name], choice)]
    keys.sort(key=lambda one: (not ends_with(one, _KEY_WORDS), -len(one.counts)))
    values = [
        columns[name]
        for name, choice in choices.items()
        if _kind(choice) == "number" and columns[name] not in keys
    ]
    value = _value_column(values)
    groups = []
    for key in keys:
        gaps = _gaps(categories_of(rows, key), times.seconds)
        if gaps:
            groups.append(_group(key, choices[key.name], times.name, median(gaps), value, task))
    return groups, "" if groups else "no column has values that return, as those of a key do"


def _kind(choice: Choice) -> str:
    return name_of(choice.kind)


def _own_missing(name: str, choices: Mapping[str, Choice]) -> Sequence[Any]:
    return own_missing({name: choices[name].kind}).get(name, [])


def _time_of_rows(rows: Rows, columns: Sequence[Seen]) -> _Times | None:
    """The column whose order is that of the rows."""
    latest = time() + MOST_AHEAD_S  # the server refuses a row whose time is later
    for seen in columns:
        texts = categories_of(rows, seen)
        values = [
            row.get(seen.name) if text else None for row, text in zip(rows, texts, strict=True)
        ]
        seconds = [seconds_of(as_time("", one)) if is_time(one) else None for one in values]
        present = [one for one in seconds if one is not None]
        ordered = sum(before <= after for before, after in pairwise(present))
        is_ordered = ordered >= _IN_ORDER * max(len(present) - 1, 1)
        if is_ordered and 2 * len(present) > len(rows) and max(present) <= latest:
            return _Times(seen.name, seconds)
    return None


def _is_key(seen: Seen, choice: Choice) -> bool:
    """Do the values return, as those of a card do, and are they many or named as keys?"""
    count, distinct = len(seen.values), len(seen.counts)
    if count < FEW_ROWS or distinct < 2 or count - distinct < _RETURNING * count:
        return False
    is_named = ends_with(seen, _KEY_WORDS)
    kind = _kind(choice)
    if kind == "number":
        return is_named and seen.all_are(is_whole)
    if kind == "ignore" and seen.rows_of(Form.TEXT, Form.NUMBER, Form.BIG) < count:
        return False
    if kind not in ("category", "ignore") or any(isinstance(one, list) for one in seen.examples):
        return False
    is_time_part = not _NOT_KEY_WORDS.isdisjoint(parts_of_name(seen.name))
    is_short = all(len(text) <= LONGEST_NAME for text in seen.counts)
    return is_short and (is_named or (distinct >= _MIN_KEYS and not is_time_part))


def _value_column(columns: Sequence[Seen]) -> str | None:
    """The number that is compared with the key's own: by its name, or the first measurement."""

    def rank(seen: Seen) -> tuple[bool, bool]:
        return not ends_with(seen, _VALUE_WORDS), seen.all_are(is_whole)

    varied = [one for one in columns if len(one.counts) >= _MIN_KEYS]
    return min(varied, key=rank).name if varied else None


def _gaps(keys: Sequence[str | None], seconds: Sequence[float | None]) -> list[float]:
    """Seconds between consecutive rows of a key, without zeros."""
    by_key: defaultdict[str, list[float]] = defaultdict(list)
    for key, second in zip(keys, seconds, strict=True):
        if key is not None and second is not None:
            by_key[key].append(second)
    pairs = (pair for times in by_key.values() for pair in pairwise(sorted(times)))
    return [after - before for before, after in pairs if after > before]


def _group(
    seen: Seen, choice: Choice, at: str, gap: float, value: str | None, task: str
) -> ProposedGroup:
    # Each class has a column for each half-life.
    factors = [10] if task == "multiclass" else [1, 10, 100]
    half_lives = list(dict.fromkeys(_half_life(factor * gap) for factor in factors))
    group: dict[str, Any] = {"by": seen.name, "time": at}
    if value is not None:
        group["of"] = value
    stats = ["since", "count", "difference", "label_mean"]
    group["stats"] = [stat for stat in stats if value is not None or stat != "difference"]
    group["half_life"] = half_lives
    count, distinct = len(seen.values), len(seen.counts)
    gaps = f"{', '.join(map(str, factors))} times the median gap of {_shown(gap)}"
    reason = (
        f"{distinct:,} values of {seen.name} return: {1 - distinct / count:.0%} of the rows have"
        f" one from before; half-lives are {gaps}"
    )
    return ProposedGroup(group, reason, _as_key(choice, distinct))


def _as_key(choice: Choice, distinct: int) -> Choice:
    """The type of a key's column: no feature of its own if it has many values."""
    if _kind(choice) == "ignore" or (distinct > _MANY_KEYS and isinstance(choice.kind, str)):
        reason = f"a key of the history with {distinct:,} values, and no feature of its own"
        return Choice("ignore", f"{reason}: this is better if labels come late")
    if _kind(choice) == "number":
        kind = "category" if choice.kind == "number" else choice.kind | {"kind": "category"}
        return Choice(kind, f"a key of the history; {choice.reason}")
    return choice._replace(reason=f"a key of the history; {choice.reason}")


def _half_life(seconds: float) -> str:
    """The half-life of the list that is nearest by ratio."""
    seconds = max(seconds, 1.0)
    return min(_HALF_LIVES, key=lambda one: abs(log(half_life_seconds(one) / seconds)))


def _shown(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} s"
