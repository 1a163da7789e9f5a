"""text/x-vw: lines of Vowpal Wabbit's format, `LABEL [IMPORTANCE] ['TAG]|NAMESPACE NAME:VALUE ...`.

The name of a feature is NAMESPACE^NAME, or NAME alone in the namespace without a name. A feature
without a value counts 1, so that `city=Oslo` is the string "Oslo" of the feature "city". A tag is
not read, unless the media type has the parameter tag=id: then it is the sample's id.
"""

import numpy as np

from dualstream.service.codecs.parsed_rows import IntakeBuilder, ParsedRows
from dualstream.service.codecs.record_reader import (
    LineReader,
    features_of,
    parse_records,
    parse_slowly,
)
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import (
    LONGEST_NAME,
    BadRow,
    Label,
    RowSchema,
    decimal_of,
    pointer_step,
    weight_of,
)
from dualstream.solvers.text import POWERS_OF_TEN, read_examples

_BLANKS = str.maketrans("\t\r", "  ")


def parse_vw(
    door: RowSchema, body: bytes, labelled: bool, parameters: dict[str, str]
) -> ParsedRows:
    """Rows of such lines. A line that does not parse is a bad row; blank lines are none."""
    tag_is_id = parameters.get("tag") == "id"
    reader = ExampleReader(door, body, labelled, tag_is_id)
    if tag_is_id and labelled:  # which the kernel would pass over
        return parse_slowly(door, labelled, reader)
    return parse_records(door, labelled, reader, read_usual, reader.most_entries)


class ExampleReader(LineReader):
    """Any line of the format."""

    def __init__(self, door: RowSchema, body: bytes, labelled: bool, tag_is_id: bool) -> None:
        super().__init__(body)
        self._door = door
        self._labelled = labelled
        self._tag_is_id = tag_is_id

    def most_entries(self) -> int:
        """A feature has a byte at least, and one before it."""
        return len(self.body) // 2 + 1

    def take(self, build: IntakeBuilder, place: int, start: int, end: int) -> None:
        try:
            line = self.body[start:end].decode().translate(_BLANKS)
        except UnicodeDecodeError:
            raise BadRow("", "the line is not UTF-8") from None
        if any(byte < " " for byte in line):
            raise BadRow("", "the line holds a control character")
        head, bar, rest = line.partition("|")
        if not bar:
            raise BadRow("", "no | before the features")
        y, weight, tag = self._head(head)
        x = features_of(self._door, _pairs(rest, LONGEST_NAME))
        build.take(place, x, y, weight, tag if self._tag_is_id else None)

    def _head(self, head: str) -> tuple[Label | None, float, str | None]:
        """Label, importance and tag; what touches the bar is a tag, too."""
        tokens = head.split(" ")
        tag = tokens.pop() or None
        tokens = [token for token in tokens if token]
        if tag is None and tokens and tokens[-1].startswith("'"):
            tag = tokens.pop()
        if any(token.startswith("'") for token in tokens):
            raise BadRow("", "a tag stands last before the |")
        if len(tokens) > 2:
            raise BadRow("", f"no initial prediction is taken, got {tokens[2][:50]!r}")
        if self._labelled and not tokens:
            raise BadRow("/y", "the label is missing")
        weight = weight_of(tokens[1]) if len(tokens) > 1 else 1.0
        y = self._label(tokens[0]) if tokens else None
        return y, weight, None if tag is None else tag.removeprefix("'")

    def _label(self, text: str) -> Label:
        if self._door.class_names is not None:
            return text
        number = decimal_of(text)
        return text if number is None else number


def _pairs(rest: str, longest: int) -> list[tuple[str, float | bool | str]]:
    """The features behind the first bar, by their names."""
    pairs: list[tuple[str, float | bool | str]] = []
    for space in rest.split("|"):
        head, *tokens = space.split(" ")
        name, colon, text = head.partition(":")
        scale = _number("", name, text) if colon else 1.0
        if colon and not name:
            raise BadRow("", "a namespace without a name has no scale")
        prefix = f"{name}^" if name else ""
        for token in tokens:
            if not token:
                continue
            feature, colon, text = token.partition(":")
            if not feature:
                raise BadRow("/x", f"a feature has no name: {token[:50]!r}")
            feature = prefix + feature
            pointer = f"/x/{pointer_step(feature[:50])}"
            if len(feature) > longest:
                raise BadRow(pointer, f"names have at most {longest} characters")
            value = _number(pointer, feature, text) if colon else 1.0
            pairs.append((feature, value * scale))
    return pairs


def _number(pointer: str, name: str, text: str) -> float:
    value = decimal_of(text)
    if value is None:
        raise BadRow(pointer, f"the value of {name[:50]!r} is not a number, got {text[:50]!r}")
    return value


def read_usual(a: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
    """The kernel of this format; see records.Kernel."""
    return bool(
        read_examples(
            text, ascii_only, a.dim, a.label_kind, a.is_telling, POWERS_OF_TEN,
            a.indptr, a.indices, a.values, a.labels, a.weights, a.places, a.spare, a.held,
            a.told, a.seen, a.name_places, a.name_ends, a.names, a.counts,
            a.label_slots, a.label_ends, a.label_text, a.buffer, a.at,
        )
    )  # fmt: skip
