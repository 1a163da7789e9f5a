"""Redis stream messages as samples: one sample per message, as JSON or as fields.

json '{"x": {"3": 1}, "y": 1}'          a sample as in POST learn
y 1 x 3:1,11:0.5                        x as in GET predict; also weight and id
y 1 x.age 39 x.city Oslo                one field per feature, by name or index
clicked 1 age 39 city Oslo              models with `columns`: one field for each column
"""

from collections.abc import Sequence

from msgspec import UNSET

from dualstream.service.codecs.flat_rows import flat_message
from dualstream.service.codecs.json_exact import read_sample
from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.query import named_features, pairs_of
from dualstream.service.codecs.row_schema import BadRow, RowSchema, pointer_step
from dualstream.service.codecs.text_values import label_of, weight_of
from dualstream.wire.problems import quoted

Fields = Sequence[tuple[bytes, bytes]]
_ONCE = ("json", "y", "weight", "id", "x")


def parse_messages(schema: RowSchema, messages: Sequence[Fields], max_bytes: int) -> ParsedRows:
    """Parse messages; a message of more than `max_bytes` is a row error."""
    builder = RowsBuilder(schema, labelled=True)
    for index, fields in enumerate(messages):
        try:
            _add(builder, schema, index, fields, max_bytes)
        except BadRow as bad:
            builder.refuse(index, bad.pointer, bad.reason)
    return builder.build()


def _add(
    builder: RowsBuilder, schema: RowSchema, index: int, fields: Fields, max_bytes: int
) -> None:
    size = sum(len(name) + len(text) for name, text in fields)
    if size > max_bytes:
        raise BadRow("", f"the message has {size} bytes; the limit is {max_bytes}")
    try:
        texts = [(name.decode(), text.decode()) for name, text in fields]
    except UnicodeDecodeError:
        raise BadRow("", "the message is not UTF-8") from None
    if schema.columns is not None:
        builder.add_flat(index, flat_message(texts))
        return
    own: dict[str, str] = {}
    features: list[tuple[str, str]] = []
    for name, text in texts:
        if name.startswith("x."):
            features.append((name[2:], text))
        elif name not in _ONCE:
            raise BadRow(f"/{pointer_step(name)}", f"unknown field {quoted(name)}")
        elif name in own:
            raise BadRow(f"/{name}", f"the field {name!r} is used twice")
        else:
            own[name] = text
    if "json" in own:
        if len(texts) > 1:
            raise BadRow("/json", "a message with the field json must have no other field")
        sample = read_sample(own["json"].encode())
        builder.add(index, sample.x, sample.y, sample.weight, sample.id)
        return
    if bool(features) == ("x" in own):
        raise BadRow("/x", "send the features in the field x, or in fields x.NAME")
    if not own.get("y"):
        raise BadRow("/y", "the label `y` is missing")
    x = named_features(features) if features else pairs_of(own["x"])
    y = label_of(own["y"], schema.class_names is not None)
    weight = weight_of(own["weight"]) if own.get("weight") else UNSET
    builder.add(index, x, y, weight, own.get("id") or None)
