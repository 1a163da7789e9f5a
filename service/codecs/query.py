"""The row of a GET predict: x=3:1,11:0.5, or x.age=39&x.city=Oslo."""

from dualstream.service.codecs.parsed_rows import IntakeBuilder, ParsedRows
from dualstream.service.codecs.row_schema import BadRow, RowSchema, feature_of
from dualstream.wire.problems import Problem, RowError, beginning, quoted


def parse_query_row(door: RowSchema, text: str) -> ParsedRows:
    """The one row that `x` names; an empty text is the all-zero row. Raises Problem 422."""
    try:
        x = pairs_of(text)
    except BadRow as bad:
        raise _refusal(bad) from None
    return _one_row(door, x)


def parse_named_row(door: RowSchema, named: dict[str, str]) -> ParsedRows:
    """The one row of the parameters x.NAME=TEXT, by name or index. Raises Problem 422.

    A text that is a JSON number is that number, true and false are bools, else it is a string.
    """
    return _one_row(door, {name: feature_of(text) for name, text in named.items()})


def _one_row(door: RowSchema, x: dict[str, float | bool | str]) -> ParsedRows:
    build = IntakeBuilder(door, labelled=False)
    try:
        build.take(0, x, None, 1.0)
    except BadRow as bad:
        raise _refusal(bad) from None
    return build.intake(single=True)


def _refusal(bad: BadRow) -> Problem:
    return Problem(422, "invalid-rows", bad.reason, [RowError(0, bad.pointer, bad.reason)])


def pairs_of(text: str) -> dict[str, float | bool | str]:
    """The features of 3:1,11:0.5 by their indices; raises BadRow."""
    x: dict[str, float | bool | str] = {}
    for pair in filter(None, text.split(",")):
        index, colon, value = pair.partition(":")
        if not colon:
            raise BadRow("/x", f"{quoted(pair)} is not index:value")
        if index in x:
            raise BadRow(f"/x/{index}", f"index {beginning(index)} is there twice")
        x[index] = _number(index, value)
    return x


def _number(index: str, text: str) -> float:
    # float() would also take 1_000 and spaces, which are not numbers on the wire.
    try:
        if "_" in text or text != text.strip():
            raise ValueError
        return float(text)
    except ValueError:
        raise BadRow(f"/x/{index}", f"{quoted(text)} is not a number") from None
