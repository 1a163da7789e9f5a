"""Vowpal Wabbit codec (text/x-vw): `LABEL [IMPORTANCE] ['TAG]|NAMESPACE NAME:VALUE ...`.

A feature is named NAMESPACE^NAME, or NAME in the unnamed namespace. Without a value it counts 1, so
`city=Oslo` is the string "Oslo" of the feature "city". Tags are ignored, unless the media type has
the parameter tag=id: then the tag is the sample's id.
"""

import numpy as np

from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.record_reader import Reader, parse_records, parse_slowly
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import (
    LONGEST_NAME,
    TOO_MANY_NAMES,
    BadRow,
    Label,
    RowSchema,
    pointer_step,
    refuse_duplicates,
)
from dualstream.service.codecs.text_fields import feature_number, label_of, weight_of
from dualstream.solvers.rows.text.tokens import MAX_ROW_NAMES
from dualstream.solvers.rows.text.vw import read_examples
from dualstream.wire.problem_json import quoted

_BLANKS = str.maketrans("\t\r", "  ")


def parse_vw(
    schema: RowSchema, body: bytes, labelled: bool, parameters: dict[str, str]
) -> ParsedRows:
    """Parse VW lines. A line that is not valid is a row error; blank lines are skipped."""
    reader = ExampleReader(schema, body, labelled)
    if parameters.get("tag") == "id":
        reader.tag_is_id = True
        if labelled:  # the kernel ignores tags
            return parse_slowly(reader)
    return parse_records(reader)


class ExampleReader(Reader):
    """Reader of VW lines."""

    tag_is_id = False

    def add_row(self, builder: RowsBuilder, index: int, start: int, end: int) -> None:
        try:
            line = self.body[start:end].decode().translate(_BLANKS)
        except UnicodeDecodeError:
            raise BadRow("", "the line is not UTF-8") from None
        if any(byte < " " for byte in line):
            raise BadRow("", "the line contains a control character")
        head, bar, rest = line.partition("|")
        if not bar:
            raise BadRow("", "the line has no | before its features")
        y, weight, tag = self._head(head)
        pairs = [
            (self.schema.composed(name), value)
            for name, value in _pairs(rest, self.schema.is_hashed)
        ]
        x: dict[str, float | bool | str] = dict(pairs)
        if len(x) < len(pairs):
            if not self.schema.is_hashed:
                refuse_duplicates((name for name, _ in pairs), "/x/")
            x = RepeatedNames(pairs)
        builder.add(index, x, y, weight, tag if self.tag_is_id else None)

    def _head(self, head: str) -> tuple[Label | None, float, str | None]:
        """Label, importance and tag. A token that touches the bar is a tag, too."""
        tokens = head.split(" ")
        tag = tokens.pop() or None
        tokens = [token for token in tokens if token]
        if tag is None and tokens and tokens[-1].startswith("'"):
            tag = tokens.pop()
        if any(token.startswith("'") for token in tokens):
            raise BadRow("", "a tag must be the last token before the |")
        if len(tokens) > 2:
            raise BadRow("", f"initial predictions are not supported, got {tokens[2][:50]!r}")
        if self.labelled and not tokens:
            raise BadRow("/y", "the label is missing at the start of the line")
        has_label = self.labelled and tokens
        if has_label and self._is_of_another_reduction(tokens[0]):
            reason = "has costs, probabilities or several classes; send one class as the label"
            raise BadRow("/y", f"{quoted(tokens[0])} {reason}")
        weight = weight_of(tokens[1]) if len(tokens) > 1 else 1.0
        y = label_of(tokens[0], self.schema.class_names is not None) if has_label else None
        return y, weight, None if tag is None else tag.removeprefix("'")

    def _is_of_another_reduction(self, label: str) -> bool:
        """Is the label not one class or number, as those of costs and of contextual bandits?"""
        if self.schema.task == "multiclass":
            return ":" in label or "," in label
        return ":" in label and not self.schema.class_names

    def run_kernel(self, a: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
        return bool(
            read_examples(
                text, ascii_only, a.dim, a.label_kind, a.collects_names, *a.arguments,
                a.row_indices, a.at,
            )
        )  # fmt: skip


class RepeatedNames(dict[str, float | bool | str]):
    """Features with duplicate names, whose values are summed as in Vowpal Wabbit.

    `items()` returns every pair, in order.
    """

    def __init__(self, pairs: list[tuple[str, float | bool | str]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def items(self) -> list[tuple[str, float | bool | str]]:  # type: ignore[override]
        return self._pairs


def _pairs(rest: str, is_hashed: bool) -> list[tuple[str, float | bool | str]]:
    """(name, value) pairs of the features after the first bar."""
    pairs: list[tuple[str, float | bool | str]] = []
    for space in rest.split("|"):
        head, *tokens = space.split(" ")
        name, colon, text = head.partition(":")
        scale = float(feature_number(name, text)) if colon else 1.0
        if colon and not name:
            raise BadRow("", "a namespace with a scale needs a name")
        prefix = f"{name}^" if name else ""
        for token in tokens:
            if not token:
                continue
            feature, colon, text = token.partition(":")
            if not feature:
                raise BadRow("/x", f"the feature {token[:50]!r} has no name")
            feature = prefix + feature
            pointer = f"/x/{pointer_step(feature[:50])}"
            if len(feature) > LONGEST_NAME:
                raise BadRow(pointer, f"feature names must have at most {LONGEST_NAME} characters")
            value = feature_number(feature, text) if colon else 1.0
            # An unscaled integer remains one, so that the row schema checks its digits.
            if len(pairs) == MAX_ROW_NAMES and is_hashed:
                raise BadRow("/x", TOO_MANY_NAMES)
            pairs.append((feature, value if scale == 1.0 else value * scale))
    return pairs
