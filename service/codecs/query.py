"""Query parameters of GET predict as a row: x=3:1,11:0.5, or x.age=39&x.city=Oslo."""

from collections.abc import Callable, Iterable

from dualstream.service.codecs.flat_rows import parse_flat_query
from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.row_schema import BadRow, RowSchema, pointer_step
from dualstream.service.codecs.text_fields import feature_number, feature_of
from dualstream.wire.problem_json import Problem, RowError, beginning, quoted


def parse_query_row(schema: RowSchema, text: str) -> ParsedRows:
    """Parse the parameter `x`; an empty text is the all-zero row. Raises Problem 422."""
    if schema.columns is not None:
        raise Problem(422, "invalid-query", "send a row of this model as x.NAME=VALUE&x.NAME=VALUE")
    return _one_row(schema, lambda: pairs_of(text))


def parse_named_row(schema: RowSchema, named: dict[str, str]) -> ParsedRows:
    """Parse the parameters x.NAME=TEXT, by name or index. Raises Problem 422.

    Texts become values as in CSV; an empty text is a feature that the row does not have.
    """
    if schema.columns is not None:
        return parse_flat_query(schema, named)
    return _one_row(schema, lambda: named_features(named.items()))


def _one_row(schema: RowSchema, read: Callable[[], dict[str, float | bool | str]]) -> ParsedRows:
    builder = RowsBuilder(schema, labelled=False)
    try:
        builder.add(0, read(), None)
    except BadRow as bad:
        error = RowError(0, bad.pointer, bad.reason)
        raise Problem(422, "invalid-rows", bad.reason, [error]) from None
    return builder.build(single=True)


def named_features(texts: Iterable[tuple[str, str]]) -> dict[str, float | bool | str]:
    """Features by name or index. Raises BadRow for a duplicate name."""
    x: dict[str, float | bool | str] = {}
    for name, text in texts:
        if name in x:
            raise BadRow(f"/x/{pointer_step(name)}", f"{quoted(name)} is duplicated")
        if text:
            x[name] = feature_of(name, text)
    return x


def pairs_of(text: str) -> dict[str, float | bool | str]:
    """Parse 3:1,11:0.5 to values by index; raises BadRow."""
    x: dict[str, float | bool | str] = {}
    for pair in filter(None, text.split(",")):
        index, colon, value = pair.partition(":")
        if not colon:
            raise BadRow("/x", f"{quoted(pair)} is not index:value")
        if index in x:
            raise BadRow(f"/x/{index}", f"index {beginning(index)} is used twice")
        x[index] = feature_number(index, value)
    return x
