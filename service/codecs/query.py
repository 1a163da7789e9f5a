"""Query parameters of GET predict as a row: x=3:1,11:0.5, or x.age=39&x.city=Oslo."""

from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.row_schema import BadRow, RowSchema, feature_of
from dualstream.wire.problems import Problem, RowError, beginning, quoted


def parse_query_row(schema: RowSchema, text: str) -> ParsedRows:
    """Parse the parameter `x`; an empty text is the all-zero row. Raises Problem 422."""
    try:
        x = pairs_of(text)
    except BadRow as bad:
        raise _refusal(bad) from None
    return _one_row(schema, x)


def parse_named_row(schema: RowSchema, named: dict[str, str]) -> ParsedRows:
    """Parse the parameters x.NAME=TEXT, by name or index. Raises Problem 422.

    A JSON number is a number, true and false are bools, any other text is a string.
    """
    return _one_row(schema, {name: feature_of(text) for name, text in named.items()})


def _one_row(schema: RowSchema, x: dict[str, float | bool | str]) -> ParsedRows:
    builder = RowsBuilder(schema, labelled=False)
    try:
        builder.add(0, x, None)
    except BadRow as bad:
        raise _refusal(bad) from None
    return builder.build(single=True)


def _refusal(bad: BadRow) -> Problem:
    return Problem(422, "invalid-rows", bad.reason, [RowError(0, bad.pointer, bad.reason)])


def pairs_of(text: str) -> dict[str, float | bool | str]:
    """Parse 3:1,11:0.5 to values by index; raises BadRow."""
    x: dict[str, float | bool | str] = {}
    for pair in filter(None, text.split(",")):
        index, colon, value = pair.partition(":")
        if not colon:
            raise BadRow("/x", f"{quoted(pair)} is not index:value")
        if index in x:
            raise BadRow(f"/x/{index}", f"index {beginning(index)} is used twice")
        x[index] = _number(index, value)
    return x


def _number(index: str, text: str) -> float:
    # float() also accepts 1_000 and spaces, which the API does not.
    try:
        if "_" in text or text != text.strip():
            raise ValueError
        return float(text)
    except ValueError:
        raise BadRow(f"/x/{index}", f"{quoted(text)} is not a number") from None
