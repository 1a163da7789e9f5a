"""The field `history` of a specification, read and with all defaults.

A group of a history makes columns from the earlier rows of a key. Names, order and number of the
columns, and the memory of the tables, follow from the resolved groups.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.rows.columns.spec import LONGEST_NAME, name_of
from dualstream.solvers.spec_fields import Spec, read_whole, refuse_unknown
from dualstream.wire.text_values import nfc

FIELD = "history"
MAX_COLUMNS = 64
"""Maximum number of columns of all groups."""
MAX_BYTES = 256_000_000
"""Maximum size of the tables of all groups."""
MAX_KEYS = 4_000_000
MAX_BY, MAX_HALF_LIVES, MAX_LABELS = 4, 8, 8
CLASSES = 10
"""Classes of a multiclass model that have columns of their own: the first ones."""
SET = 8
"""Slots of a set of the table."""

_LATEST = ("last", "change", "since")
_DECAYED = ("count", "sum", "mean", "deviation", "difference", "z", "label_count", "label_mean")
STATS = (*_LATEST, *_DECAYED)
"""All statistics but `labels`, in the order of their columns."""
_OF_VALUES = ("last", "change", "sum", "mean", "deviation", "difference", "z")
_EMPTY: tuple[Any, ...] = (None, [], ())
_FIELDS = ("by", "time", "of", "stats", "half_life", "labels", "keys")
_KEY_TYPES = ("category", "boolean", "number", "ignore")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_TIME = re.compile(r"([1-9][0-9]{0,9})([smhdw])")
_MAX_SECONDS = 36_500 * _SECONDS["d"]
_HALF_LIFE = "a time such as 90s, 15m, 1h, 30d or 2w up to 36500d, or a number of rows of the key"
_MIN_ROWS, _MAX_ROWS = 0.1, 1e9


class HistoryColumn(NamedTuple):
    """A column of a group; in a multiclass model `labels` and `label_mean` have one a class."""

    name: str
    stat: str
    """One of STATS, or `labels`."""


def read_history(spec: Mapping[str, Any], columns: Spec | None) -> list[Spec] | None:
    """The groups with every default written out; None without groups. Raises InvalidSpec."""
    groups = spec.get(FIELD)
    if groups in _EMPTY:
        return None
    if columns is None:
        allowed = "left out, or given with `columns`, which make rows flat"
        raise InvalidSpec(f"/{FIELD}", groups, allowed)
    if not isinstance(groups, list | tuple) or len(groups) > MAX_COLUMNS:
        raise InvalidSpec(f"/{FIELD}", groups, f"a list of at most {MAX_COLUMNS} objects")
    errors = _Errors()
    resolved = [
        errors.attempt(_read_group, one, f"/{FIELD}/{at}", columns, errors)
        for at, one in enumerate(groups)
    ]
    errors.raise_all()
    _check_names(groups, resolved, columns)
    task = spec.get("task", "binary")
    count = column_count(resolved, task)
    if count > MAX_COLUMNS:
        allowed = f"at most {MAX_COLUMNS} columns in all, not {count}: take out half-lives, labels"
        classes = f"; {CLASSES} classes have one each" if task == "multiclass" else ""
        raise InvalidSpec(f"/{FIELD}", groups, f"{allowed} or statistics{classes}")
    _check_bytes(resolved, task)
    return resolved


def group_columns(group: Mapping[str, Any]) -> list[HistoryColumn]:
    """The columns of a resolved group, in their order."""
    key = "*".join(group["by"])
    of_rows = key or group["of"] or group["time"]
    of_values = ".".join(name for name in (key, group["of"]) if name)
    columns = []
    for stat in (*_LATEST, "labels", *_DECAYED):
        if stat == "labels":
            ends: Sequence[object] = range(1, group["labels"] + 1)
        else:
            ends = group["half_life"] if stat in _DECAYED else ("",)
            ends = ends if stat in group["stats"] else ()
        owner = of_values if stat in _OF_VALUES else of_rows
        columns += [HistoryColumn(f"{owner}.{stat}.{end}".rstrip("."), stat) for end in ends]
    return columns


def group_names(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """How resolved groups are named in metrics: as their columns begin. If several begin so, all
    but the first have their index, too."""
    names: list[str] = []
    for at, group in enumerate(groups):
        name = "*".join(group["by"]) or group["of"] or group["time"]
        names.append(f"{name} #{at}" if name in names else name)
    return names


def column_names(groups: Iterable[Mapping[str, Any]], task: str) -> list[str]:
    """Names of all columns but those of single classes, which end with `=CLASS`."""
    columns = [column for group in groups for column in group_columns(group)]
    return [one.name for one in columns if _classes_of(one, task) == 1]


def column_count(groups: Iterable[Mapping[str, Any]], task: str) -> int:
    """Number of all columns."""
    return sum(_classes_of(one, task) for group in groups for one in group_columns(group))


def _classes_of(column: HistoryColumn, task: str) -> int:
    has_classes = task == "multiclass" and column.stat in ("labels", "label_mean")
    return CLASSES if has_classes else 1


def half_life_seconds(half_life: str) -> float:
    """Seconds of a half-life that is a time."""
    return float(int(half_life[:-1]) * _SECONDS[half_life[-1]])


def slots_of(keys: int) -> int:
    """Slots of the table of a group: whole sets, and 4/3 slots a key."""
    return -(-keys // (SET * 3 // 4)) * SET


def numbers_per_slot(group: Mapping[str, Any], task: str) -> int:
    """Numbers of a key, without its hash and the row of its last use."""

    def has(*stats: str) -> bool:
        return any(stat in group["stats"] for stat in stats)

    means = CLASSES if task == "multiclass" else 1
    scatter = has("deviation", "z")
    mean = scatter or has("sum", "mean", "difference")
    label = (1 if has("label_count") else 0, 1 + means)[has("label_mean")]
    each = (mean or has("count")) + mean + scatter + label
    latest = (group["time"] is not None) + has("last", "change") + group["labels"]
    return int(latest + each * len(group["half_life"]))


def table_bytes(groups: Iterable[Mapping[str, Any]], task: str) -> int:
    """Size of the tables of all groups."""
    sizes = ((slots_of(group["keys"]), numbers_per_slot(group, task)) for group in groups)
    return sum(slots * (16 + 8 * numbers) for slots, numbers in sizes)


class _Errors(list[InvalidSpec]):
    """Errors of all groups: a field that is wrong leaves the others to be judged."""

    def attempt(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """What `read` returns; None after an error, which is kept."""
        try:
            return read(*arguments)
        except InvalidSpec as error:
            self.extend(error.violations)
            return None

    def raise_all(self) -> None:
        """Raise the first error with all of them as its `violations`, if there are any."""
        if self:
            self[0].violations = tuple(self)
            raise self[0]


def _read_group(value: Any, owner: str, columns: Spec, errors: _Errors) -> Spec:
    if not isinstance(value, Mapping):
        raise InvalidSpec(owner, value, f"an object with some of {', '.join(_FIELDS)}")
    errors.attempt(refuse_unknown, value, owner, _FIELDS)
    group = {name: value[name] for name in _FIELDS if value.get(name) not in _EMPTY}
    by = errors.attempt(_listed, group, owner, "by", MAX_BY) or []
    if not group.keys() & {"by", "time", "of"}:
        allowed = "an object with `by`, `of` or `time`, as names of its columns begin with it"
        raise InvalidSpec(owner, value, allowed)
    resolved: Spec = {"by": [], "time": None, "of": None}
    for name, field in by:
        key = errors.attempt(_read_key, name, field, columns, resolved["by"])
        resolved["by"].append(key)
    for name, kind in (("time", "time"), ("of", "number")):
        if name in group:
            field = f"{owner}/{name}"
            resolved[name] = errors.attempt(_read_column, group[name], field, (kind,), columns)
    resolved["stats"] = _read_stats(group, owner, errors)
    resolved["half_life"] = _read_half_lives(group, owner, resolved["stats"], errors)
    resolved["labels"] = errors.attempt(read_whole, group, owner, "labels", 0, 0, MAX_LABELS)
    bounds = (65_536, 1000, MAX_KEYS) if "by" in group else (1, 1, 1)
    resolved["keys"] = errors.attempt(read_whole, group, owner, "keys", *bounds)
    return {name: resolved[name] for name in _FIELDS}


def _listed(group: Spec, owner: str, name: str, most: int) -> list[tuple[Any, str]]:
    """Elements of a field and their pointers; a value that is no list is its only element."""
    value, field = group.get(name, []), f"{owner}/{name}"
    if not isinstance(value, list | tuple):
        return [(value, field)]
    if len(value) > most:
        raise InvalidSpec(field, value, f"one, or a list of at most {most}")
    return [(one, f"{field}/{at}") for at, one in enumerate(value)]


def _read_key(name: Any, field: str, columns: Spec, before: Sequence[str]) -> str:
    key = _read_column(name, field, _KEY_TYPES, columns)
    if key in before:
        raise InvalidSpec(field, name, "another column than those before it")
    return key


def _read_column(value: Any, field: str, kinds: tuple[str, ...], columns: Spec) -> str:
    if not isinstance(value, str):
        raise InvalidSpec(field, value, "the name of a column")
    name = nfc(value)
    if name == columns["label"]:
        allowed = "another column: the label's past is in `labels`, label_count and label_mean"
        raise InvalidSpec(field, name, allowed)
    for role in ("id", "weight"):
        if name == columns[role]:
            raise InvalidSpec(field, name, f"another column: this one is the {role}")
    kind = columns["types"].get(name)
    if kind is None or name_of(kind) not in kinds:
        first = f"{', '.join(kinds[:-1])} or " if kinds[:-1] else ""
        allowed = f"a column that `columns.types` declares as {first}{kinds[-1]}"
        raise InvalidSpec(field, name, allowed)
    return name


def _read_stats(group: Spec, owner: str, errors: _Errors) -> list[str]:
    listed = errors.attempt(_listed, group, owner, "stats", len(STATS))
    if listed is None:
        return []
    if not listed and not group.get("labels"):
        allowed = f"a list of some of {', '.join(STATS)}; or `labels` is from 1 to {MAX_LABELS}"
        errors.append(InvalidSpec(f"{owner}/stats", group.get("stats"), allowed))
    stats: list[str] = []
    for one, field in listed:
        stats.append(errors.attempt(_read_stat, one, field, group, stats))
    if "of" in group and None not in stats and not any(stat in _OF_VALUES for stat in stats):
        allowed = f"left out, or `stats` has one of {', '.join(_OF_VALUES)}"
        errors.append(InvalidSpec(f"{owner}/of", group["of"], allowed))
    return sorted(filter(None, stats), key=STATS.index)


def _read_stat(stat: Any, field: str, group: Spec, before: Sequence[str]) -> str:
    if stat == "labels":
        allowed = 'left out: the last 3 labels are a field of the group, `"labels": 3`'
        raise InvalidSpec(field, stat, allowed)
    if not isinstance(stat, str) or stat not in STATS:
        raise InvalidSpec.not_one_of(field, stat, STATS)
    if stat in before:
        raise InvalidSpec(field, stat, "another statistic than those before it")
    if stat in _OF_VALUES and "of" not in group:
        raise InvalidSpec(field, stat, f"left out, or `of` names the column of its {stat}")
    if stat == "since" and "time" not in group:
        raise InvalidSpec(field, stat, "left out, or `time` names a column of times")
    return stat


def _read_half_lives(
    group: Spec, owner: str, stats: Sequence[str], errors: _Errors
) -> list[str | float]:
    listed = errors.attempt(_listed, group, owner, "half_life", MAX_HALF_LIVES)
    if listed is None:
        return []
    decayed, field = [stat for stat in stats if stat in _DECAYED], f"{owner}/half_life"
    if decayed and not listed:
        allowed = f"{_HALF_LIFE}, or a list of them, as {decayed[0]} is decayed"
        errors.append(InvalidSpec(field, group.get("half_life"), allowed))
    # After an error it is unclear which statistics are meant.
    if listed and not decayed and not errors:
        allowed = f"left out, or `stats` has one of {', '.join(_DECAYED)}"
        errors.append(InvalidSpec(field, group["half_life"], allowed))
    half_lives: list[Any] = []
    for one, pointer in listed:
        half_lives.append(errors.attempt(_read_half_life, one, pointer, group, half_lives))
    return half_lives


def _read_half_life(
    value: Any, field: str, group: Spec, before: Sequence[str | float | None]
) -> str | float:
    half_life = _time_or_rows(value, field)
    if isinstance(half_life, str) and "time" not in group:
        allowed = "a number of rows, or `time` names a column of times"
        raise InvalidSpec(field, value, allowed)
    others = [one for one in before if one is not None]
    if others and isinstance(half_life, str) != isinstance(others[0], str):
        kind = "a time" if isinstance(others[0], str) else "a number of rows"
        raise InvalidSpec(field, value, f"{kind} as the first one")
    if _length(half_life) in map(_length, others):
        raise InvalidSpec(field, value, "another half-life than those before it")
    return half_life


def _length(half_life: str | float) -> float:
    return half_life_seconds(half_life) if isinstance(half_life, str) else half_life


def _time_or_rows(value: Any, field: str) -> str | float:
    if isinstance(value, str) and _TIME.fullmatch(value):
        if half_life_seconds(value) <= _MAX_SECONDS:
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if _MIN_ROWS <= value <= _MAX_ROWS:
            return int(value) if value == int(value) else float(value)
        allowed = f"a number of rows in [{_MIN_ROWS:g}, {_MAX_ROWS:g}], or a time such as 30d"
        raise InvalidSpec(field, value, allowed)
    raise InvalidSpec(field, value, _HALF_LIFE)


def _check_names(groups: Sequence[Any], resolved: Sequence[Spec], columns: Spec) -> None:
    """Raise InvalidSpec for a column that another group or the rows have, too."""
    owners: dict[str, str] = {name: "a column of the rows" for name in columns["types"]}
    roles = {columns[role]: f"the {role}" for role in ("label", "id", "weight") if columns[role]}
    owners |= roles
    for at, group in enumerate(resolved):
        field = f"/{FIELD}/{at}"
        for column in group_columns(group):
            if len(column.name) > LONGEST_NAME:
                allowed = f"of shorter columns: names have at most {LONGEST_NAME} characters"
                raise InvalidSpec(field, groups[at], allowed)
            if column.name in owners:
                allowed = f"without the column `{column.name}`: it is {owners[column.name]}, too"
                raise InvalidSpec(field, groups[at], allowed)
        owners |= {column.name: f"a column of group {at}" for column in group_columns(group)}


def _check_bytes(groups: Sequence[Spec], task: str) -> None:
    """Raise InvalidSpec at the largest group if the tables are too large."""
    size = table_bytes(groups, task)
    if size <= MAX_BYTES:
        return
    sizes = [table_bytes([group], task) for group in groups]
    at = sizes.index(max(sizes))
    allowed = (
        f"lower, or its group has fewer half-lives or statistics: its table takes "
        f"{sizes[at] / 1e6:.0f} MB and all tables {size / 1e6:.0f} MB; "
        f"the limit is {MAX_BYTES / 1e6:.0f} MB"
    )
    raise InvalidSpec(f"/{FIELD}/{at}/keys", groups[at]["keys"], allowed)
