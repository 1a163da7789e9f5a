"""The fields `columns` and `crosses` of a specification, read and with all defaults."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.spec_fields import (
    Spec,
    read_choice,
    read_kind,
    read_object,
    read_whole,
    short_form,
)
from dualstream.wire.text_values import EXACT, nfc

LONGEST_NAME = 1024
AGE = "age"
"""The part of a time that depends on earlier rows: see features/ages.py."""
MAX_COLUMNS = 10_000
"""Maximum number of columns that a specification declares, and of those that it ignores."""
MAX_CROSSES = 1000
MAX_MISSING = 100
MOST_CROSSED = 3
"""Maximum number of columns in a cross."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "number": ("missing",),
    "boolean": ("missing",),
    "category": ("missing",),
    "text": ("ngrams", "weights", "missing"),
    "time": ("parts", "missing"),
    "ignore": (),
}
TIME_PARTS = ("hour", "weekday", "month_day", "year_day", AGE)
_DEFAULT_PARTS = ["hour", "weekday"]
UNKNOWN = ("infer", "ignore", "refuse")
_FIELDS = ("label", "id", "weight", "ignore", "types", "missing", "missing_indicator", "unknown")
_ROLES = ("label", "weight", "id")
_CROSSES = f"a list of at most {MAX_CROSSES} lists of 2 or 3 columns, and `*`"


def age_features(spec: Mapping[str, Any]) -> list[str]:
    """Names of the features of a resolved specification that are ages of times."""
    types = (spec.get("columns") or {"types": {}})["types"]
    timed = [name for name, kind in types.items() if isinstance(kind, Mapping)]
    return [f"{name}.{AGE}" for name in timed if AGE in types[name].get("parts", ())]


def read_columns(spec: Mapping[str, Any]) -> Spec | None:
    """The field `columns` with all defaults; null or left out: rows are not flat.

    Raises InvalidSpec.
    """
    if spec.get("columns") is None:
        return None
    fields = read_object(spec["columns"], "/columns", _FIELDS, "null or an object")
    types, ignored = _read_types(fields.get("types", {})), _read_ignored(fields.get("ignore", []))
    label = _read_name(fields, "label", "y")
    others = {
        role: _read_name(fields, role, role if _is_free(role, types, ignored, label) else None)
        for role in ("id", "weight")
    }
    columns: Spec = {
        "label": label,
        **others,
        "ignore": ignored,
        "types": types,
        "missing": _read_missing(fields.get("missing", ["", "NaN", None]), "/columns/missing"),
        "missing_indicator": fields.get("missing_indicator", False),
        "unknown": _under(read_choice, fields, "unknown", "infer", UNKNOWN),
    }
    if not isinstance(columns["missing_indicator"], bool):
        field = "/columns/missing_indicator"
        raise InvalidSpec(field, columns["missing_indicator"], "true or false")
    _check_roles(columns)
    return columns


def read_crosses(spec: Mapping[str, Any], columns: Spec | None) -> list[Any]:
    """The field `crosses`: lists of columns in their order, and `*` for all pairs of categories.

    Raises InvalidSpec.
    """
    field_value = spec.get("crosses")
    if field_value is None:
        return []
    if columns is None:
        raise InvalidSpec(
            "/crosses", field_value, "left out, or given with `columns`, which make rows flat"
        )
    if not isinstance(field_value, list | tuple) or len(field_value) > MAX_CROSSES:
        raise InvalidSpec("/crosses", field_value, _CROSSES)
    crosses: list[Any] = []
    for at, one in enumerate(field_value):
        field = f"/crosses/{at}"
        if one == "*":
            pairs = math.comb(len(_categories(columns["types"])), 2)
            if not 1 <= pairs <= MAX_CROSSES:
                allowed = f"left out: `types` has {pairs:,} pairs of categories and booleans"
                raise InvalidSpec(field, one, f"{allowed}; 1 to {MAX_CROSSES} can be crossed")
            crosses.append("*")
            continue
        if not isinstance(one, list | tuple) or not 2 <= len(one) <= MOST_CROSSED:
            raise InvalidSpec(field, one, f"2 or {MOST_CROSSED} columns, or `*`")
        names = [_checked_name(name, f"{field}/{step}") for step, name in enumerate(one)]
        if len(set(names)) < len(names):
            raise InvalidSpec(field, one, "different columns")
        for step, name in enumerate(names):
            _check_crossed(name, f"{field}/{step}", columns)
        crosses.append(names)
    return crosses


def _categories(types: Mapping[str, Any]) -> list[str]:
    """Names of the columns that `*` joins, sorted."""
    return sorted(name for name, kind in types.items() if name_of(kind) in ("category", "boolean"))


def crossed_columns(columns: Mapping[str, Any], crosses: list[Any]) -> list[tuple[str, ...]]:
    """All crosses as tuples of columns, `*` written out, each set of columns once."""
    categories = _categories(columns["types"])
    crossed: dict[frozenset[str], tuple[str, ...]] = {}
    for one in crosses:
        for names in combinations(categories, 2) if one == "*" else [tuple(one)]:
            crossed.setdefault(frozenset(names), names)
    return list(crossed.values())


def name_of(kind: str | Mapping[str, Any]) -> str:
    """The name of a column's type."""
    return kind if isinstance(kind, str) else str(kind["kind"])


def own_missing(types: Mapping[str, Any]) -> dict[str, list[str | float | None]]:
    """Values that are missing in one column alone, by column."""
    objects = {name: kind for name, kind in types.items() if isinstance(kind, Mapping)}
    return {name: kind["missing"] for name, kind in objects.items() if "missing" in kind}


def parts_of(kind: str | Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of a column of times."""
    return tuple(kind["parts"]) if isinstance(kind, Mapping) and "parts" in kind else ()


class Ignored:
    """Columns that are no features: by a pattern of `ignore`, or by their type.

    `trace` names the column and those of an object in it (`trace.a`). `*` stands for any
    characters, also none: `tr*` are all that begin so, `*_id` all that end so.
    """

    def __init__(self, patterns: Sequence[str], types: Mapping[str, Any]) -> None:
        self._names = {one for one in patterns if "*" not in one}
        self._names |= {name for name, kind in types.items() if kind == "ignore"}
        self._longest = max(map(len, self._names), default=0)
        wildcards = "|".join(_expression(one) for one in patterns if "*" in one)
        # A column in an object has the name of the object before a dot.
        expression = rf"(?:{wildcards})(?:\..*)?"
        self._wildcards = re.compile(expression, re.DOTALL) if wildcards else None

    def __contains__(self, name: str) -> bool:
        if name in self._names or (self._wildcards and self._wildcards.fullmatch(name)):
            return True
        # Names come from clients and may be all dots: only as many are read as a pattern has.
        end = name.find(".", 0, self._longest + 1)
        while end >= 0:
            if name[:end] in self._names:
                return True
            end = name.find(".", end + 1, self._longest + 1)
        return False


def _expression(pattern: str) -> str:
    """Regular expression of a pattern with `*`, as fnmatch writes it.

    The groups are atomic: a name of any length costs linear time.
    """
    first, *middle, last = map(re.escape, pattern.split("*"))
    return first + "".join(f"(?>.*?{one})" for one in middle if one) + ".*" + last


def _under(read: Any, fields: Spec, name: str, *options: Any) -> Any:
    try:
        return read(fields, name, *options)
    except InvalidSpec as error:
        raise error.under("/columns") from None


def _checked_name(name: Any, field: str) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
        raise InvalidSpec(field, name, f"a text of 1 to {LONGEST_NAME} characters")
    return nfc(name)


def _read_name(fields: Spec, role: str, default: str | None) -> str | None:
    name = fields.get(role, default)
    if name is None and role != "label":
        return None
    return _checked_name(name, f"/columns/{role}")


def _is_free(name: str, types: Spec, ignored: list[str], label: str | None) -> bool:
    """Whether a column of this name has no other use, so that the name can be its role."""
    return name not in types and name != label and name not in Ignored(ignored, types)


def _read_ignored(names: Any) -> list[str]:
    if not isinstance(names, list | tuple) or len(names) > MAX_COLUMNS:
        allowed = f"a list of at most {MAX_COLUMNS} columns; `*` stands for any characters"
        raise InvalidSpec("/columns/ignore", names, allowed)
    return [_checked_name(name, f"/columns/ignore/{at}") for at, name in enumerate(names)]


def _read_types(types_field: Any) -> dict[str, str | Spec]:
    if not isinstance(types_field, Mapping) or len(types_field) > MAX_COLUMNS:
        allowed = f"an object of at most {MAX_COLUMNS} columns and their types"
        raise InvalidSpec("/columns/types", types_field, allowed)
    types: dict[str, str | Spec] = {}
    for given_name, kind in types_field.items():
        name = _checked_name(given_name, "/columns/types")
        if name in types:
            raise InvalidSpec(_pointer(name), kind, "one type for each column")
        types[name] = _read_type(_step(name), kind)
    return types


def _read_type(name: str, kind: Any) -> str | Spec:
    """The type of a column, whose name is a step of a JSON pointer."""
    try:
        read = read_kind({name: kind}, name, "", KINDS)
        if read["kind"] == "text":
            read["ngrams"] = read_whole(read, f"/{name}", "ngrams", 1, 1, 3)
            read["weights"] = read_choice(read, "weights", "count", ("count", "presence"))
        if read["kind"] == "time":
            parts = read.get("parts", _DEFAULT_PARTS)
            is_list = isinstance(parts, list | tuple) and 1 <= len(parts) <= len(TIME_PARTS)
            if not is_list or not all(part in TIME_PARTS for part in parts):
                allowed = f"a list of some of {', '.join(TIME_PARTS)}"
                raise InvalidSpec(f"/{name}/parts", parts, allowed)
            read["parts"] = [part for part in TIME_PARTS if part in parts]
        if "missing" in read:
            read["missing"] = _read_missing(read["missing"], f"/{name}/missing")
    except InvalidSpec as error:
        raise error.under("/columns/types") from None
    return short_form(read)


def _read_missing(values: Any, field: str) -> list[str | float | None]:
    allowed = f"a list of at most {MAX_MISSING} texts, numbers and null"
    if not isinstance(values, list | tuple) or len(values) > MAX_MISSING:
        raise InvalidSpec(field, values, allowed)
    missing: list[str | float | None] = []
    for at, one in enumerate(values):
        is_number = isinstance(one, int | float) and not isinstance(one, bool)
        if is_number and not -EXACT <= one <= EXACT:
            raise InvalidSpec(f"{field}/{at}", one, "a number within 2^53, or a text")
        if not is_number and one is not None and not isinstance(one, str):
            raise InvalidSpec(f"{field}/{at}", one, "a text, a number or null")
        value = nfc(one) if isinstance(one, str) else one
        if value not in missing:
            missing.append(value)
    return missing


def _check_roles(columns: Spec) -> None:
    """Raise InvalidSpec for a column with two roles, or a role that is ignored or has a type."""
    owners: dict[str, str] = {}
    ignored, dropped = Ignored(columns["ignore"], {}), Ignored(columns["ignore"], columns["types"])
    for role in _ROLES:
        name = columns[role]
        if name is None:
            continue
        field = f"/columns/{role}"
        if name in owners:
            raise InvalidSpec(field, name, f"another column than `{owners[name]}`")
        owners[name] = role
        if name in columns["types"]:
            allowed = f"left out: the column is the {role}"
            raise InvalidSpec(_pointer(name), columns["types"][name], allowed)
        if name in dropped:
            raise InvalidSpec(field, name, "a column that is not ignored")
    for name, kind in columns["types"].items():
        if "=" in name and (category := _category_before(name, columns["types"])):
            allowed = f"left out, or renamed: values of the category `{category}` give such names"
            raise InvalidSpec(_pointer(name), kind, allowed)
        owner, _, part = name.rpartition(".")
        if name in ignored or (owner and owner in dropped):
            raise InvalidSpec(_pointer(name), kind, "left out: this column is ignored")
        if part in parts_of(columns["types"].get(owner, "")):
            raise InvalidSpec(_pointer(name), kind, f"left out: it is a part of the time `{owner}`")


def _category_before(name: str, types: Mapping[str, Any]) -> str | None:
    """A category whose name and `=` are the beginning of this name.

    The features of both columns can have one name: `c==x` is `c` with `=x`, and `c=` with `x`.
    """
    ends = [at for at, sign in enumerate(name) if sign == "="]
    before = (name[:at] for at in ends)
    return next((one for one in before if name_of(types.get(one, "")) == "category"), None)


def _step(name: str) -> str:
    """A name as a step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _pointer(name: str) -> str:
    return f"/columns/types/{_step(name)}"


def _check_crossed(name: str, field: str, columns: Spec) -> None:
    """Raise InvalidSpec for a column that has no category."""
    types: Mapping[str, Any] = columns["types"]
    kind = types.get(name)
    owner, _, part = name.rpartition(".")
    parts = parts_of(types.get(owner, ""))
    if kind is None and parts:
        if part in _categories_of(parts):
            return
        shown = " or ".join(f"{owner}.{one}" for one in _categories_of(parts))
        allowed = shown or f"another column: a time has no categories in `{AGE}`"
        raise InvalidSpec(field, name, allowed)
    if name in (columns["label"], columns["id"], columns["weight"]):
        raise InvalidSpec(field, name, "a column of features")
    if name in Ignored(columns["ignore"], types):
        raise InvalidSpec(field, name, "a column that is not ignored")
    if kind is None and columns["unknown"] != "infer":
        raise InvalidSpec(field, name, "one of the columns of `types`")
    if isinstance(kind, Mapping) and kind["kind"] == "text":
        raise InvalidSpec(field, name, "a column of categories, numbers or booleans, not of text")
    if isinstance(kind, Mapping) and kind["kind"] == "time":
        crossed = [f"{name}.{part}" for part in _categories_of(parts_of(kind))]
        allowed = " or ".join(crossed) or f"another column: a time has no categories in `{AGE}`"
        raise InvalidSpec(field, name, allowed)


def _categories_of(parts: tuple[str, ...]) -> list[str]:
    """The parts of a time that can be crossed."""
    return [part for part in parts if part != AGE]
