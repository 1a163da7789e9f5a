"""Texts of CSV, queries, Redis fields, Vowpal Wabbit and LIBSVM as features, labels and weights.

All formats read texts by the table in wire/text_values.py; here a refused text becomes a BadRow.
"""

from dualstream.service.codecs.row_schema import BadRow, Label, pointer_step
from dualstream.wire.problem_json import quoted
from dualstream.wire.text_values import BadValue, number_of, value_of


def feature_of(name: str, text: str) -> float | int | bool | str:
    """Value of a feature: a number, a boolean or a category. Raises BadRow."""
    try:
        return value_of(text)
    except BadValue as bad:
        raise BadRow(f"/x/{pointer_step(name[:50])}", str(bad)) from None


def feature_number(name: str, text: str) -> float | int:
    """Value of a feature where the format has no categories. Raises BadRow."""
    what = f"the value of {name[:50]!r} is not a number"
    return _number(f"/x/{pointer_step(name[:50])}", what, text)


def label_of(text: str, is_named: bool) -> Label:
    """Parse a label; with `is_named` labels (spec field `labels`) the text is the label."""
    if is_named:
        return text
    try:
        return value_of(text)
    except BadValue as bad:
        raise BadRow("/y", str(bad)) from None


def weight_of(text: str) -> float:
    """Parse a weight. Raises BadRow."""
    return float(_number("/weight", "the weight must be a number", text))


def _number(pointer: str, what: str, text: str) -> float | int:
    try:
        number = number_of(text)
    except BadValue as bad:
        raise BadRow(pointer, str(bad)) from None
    if number is None:
        raise BadRow(pointer, f"{what}, got {quoted(text)}")
    return number
