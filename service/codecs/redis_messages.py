"""Messages of a store's input: one sample each, as JSON or field by field.

json '{"x": {"3": 1}, "y": 1}'          a sample as POST learn takes it
y 1 x 3:1,11:0.5                        fields; x as in a query, and weight, id where wanted
y 1 x.age 39 x.city Oslo                features by name or index, a field for each
"""

from collections.abc import Sequence

from msgspec import UNSET

from dualstream.service.codecs.json_exact import read_sample
from dualstream.service.codecs.parsed_rows import IntakeBuilder, ParsedRows
from dualstream.service.codecs.query import pairs_of
from dualstream.service.codecs.record_reader import features_of
from dualstream.service.codecs.row_schema import (
    BadRow,
    RowSchema,
    feature_of,
    label_of,
    pointer_step,
    weight_of,
)
from dualstream.wire.problems import quoted

Fields = Sequence[tuple[bytes, bytes]]
_ONCE = ("json", "y", "weight", "id", "x")


def parse_messages(door: RowSchema, messages: Sequence[Fields], most_bytes: int) -> ParsedRows:
    """The rows of these messages, of which each has `most_bytes` in its fields at most."""
    build = IntakeBuilder(door, labelled=True)
    for place, fields in enumerate(messages):
        try:
            _take(build, door, place, fields, most_bytes)
        except BadRow as bad:
            build.refuse(place, bad.pointer, bad.reason)
    return build.intake()


def _take(
    build: IntakeBuilder, door: RowSchema, place: int, fields: Fields, most_bytes: int
) -> None:
    size = sum(len(name) + len(text) for name, text in fields)
    if size > most_bytes:
        raise BadRow("", f"the message has {size} bytes, at most {most_bytes} are taken")
    try:
        texts = [(name.decode(), text.decode()) for name, text in fields]
    except UnicodeDecodeError:
        raise BadRow("", "the message is not UTF-8") from None
    own: dict[str, str] = {}
    features: list[tuple[str, float | bool | str]] = []
    for name, text in texts:
        if name.startswith("x."):
            features.append((name[2:], feature_of(text)))
        elif name not in _ONCE:
            raise BadRow(f"/{pointer_step(name)}", f"the field {quoted(name)} is not known")
        elif name in own:
            raise BadRow(f"/{name}", f"{name!r} is there twice")
        else:
            own[name] = text
    if "json" in own:
        if len(texts) > 1:
            raise BadRow("/json", "a message with json has no other field")
        _take_json(build, door, place, own["json"])
        return
    if bool(features) == ("x" in own):
        raise BadRow("/x", "a message has its features in x, or in fields x.NAME")
    if "y" not in own:
        raise BadRow("/y", "the label is missing")
    x = features_of(door, features) if features else pairs_of(own["x"])
    y = label_of(own["y"], door.class_names is not None)
    weight = weight_of(own["weight"]) if "weight" in own else 1.0
    build.take(place, x, y, weight, own.get("id"))


def _take_json(build: IntakeBuilder, door: RowSchema, place: int, text: str) -> None:
    sample = read_sample(text.encode(), door.is_hashed)
    if sample.y is UNSET:
        raise BadRow("/y", "the label is missing")
    weight = 1.0 if sample.weight is UNSET else sample.weight
    build.take(place, sample.x, sample.y, weight, None if sample.id is UNSET else sample.id)
