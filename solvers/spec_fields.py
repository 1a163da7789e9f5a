"""Readers of specification fields: each returns a checked value or raises InvalidSpec.

`owner` is the JSON pointer of the object that has the field.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from dualstream.solvers.errors import InvalidSpec

Spec = dict[str, Any]
COSTS = "costs"
"""Field with the costs of mistakes."""
INTERVALS = "intervals"
"""Field with which a model asks for prediction intervals and sets."""
SEGMENTS = "segments"
"""Field with the columns by whose values metrics are kept."""
MAX_UNKNOWN = 100
"""Maximum number of unknown fields of one object that are listed."""


def refuse_unknown(fields: Mapping[str, Any], owner: str, takes: tuple[str, ...]) -> None:
    """Refuse fields that are not in `takes`; the error's `violations` has the first of them."""
    unknown = list(islice((name for name in fields if name not in takes), MAX_UNKNOWN))
    if not unknown:
        return
    errors = [InvalidSpec.unknown_field(f"{owner}/{name}", fields[name], takes) for name in unknown]
    errors[0].violations = tuple(errors)
    raise errors[0]


def read_object(value: Any, field: str, takes: tuple[str, ...], allowed: str) -> Spec:
    """`value` as an object with the fields `takes`."""
    if not isinstance(value, Mapping):
        raise InvalidSpec(field, value, allowed)
    refuse_unknown(value, field, takes)
    return dict(value)


def read_choice(
    fields: Mapping[str, Any], name: str, default: str, choices: tuple[str, ...]
) -> str:
    """One of some names."""
    value = fields.get(name, default)
    if isinstance(value, str) and value in choices:
        return value
    raise InvalidSpec.not_one_of(f"/{name}", value, choices)


def read_kind(
    fields: Mapping[str, Any], name: str, default: str, kinds: Mapping[str, tuple[str, ...]]
) -> Spec:
    """A field with parameters: an object with `kind`, or a string as its short form."""
    value = fields.get(name, default)
    if isinstance(value, str):
        return {"kind": read_choice({name: value}, name, default, tuple(kinds))}
    allowed = f"a name or an object with kind, one of {', '.join(kinds)}"
    if not isinstance(value, Mapping) or "kind" not in value:
        raise InvalidSpec(f"/{name}", value, allowed)
    kind = value["kind"]
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidSpec.not_one_of(f"/{name}/kind", kind, kinds)
    return read_object(value, f"/{name}", ("kind", *kinds[kind]), allowed)


def short_form(field: Spec) -> str | Spec:
    """Write a kind without parameters as its name."""
    return str(field["kind"]) if len(field) == 1 else field


def read_number(
    fields: Mapping[str, Any],
    owner: str,
    name: str,
    default: float,
    least: float,
    most: float,
    allowed: str,
) -> float:
    """A number within bounds. A bool is not a number."""
    value = fields.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise InvalidSpec(f"{owner}/{name}", value, allowed)
    return float(value)


def read_whole(
    fields: Mapping[str, Any], owner: str, name: str, default: int | None, least: int, most: int
) -> int:
    """A whole number within bounds; required if `default` is None."""
    value = fields.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidSpec(f"{owner}/{name}", value, f"a whole number in [{least}, {most}]")
    return value


def read_flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    """A boolean."""
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise InvalidSpec(f"/{name}", value, "true or false")
    return value
