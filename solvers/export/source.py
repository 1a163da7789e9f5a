"""Source: the content of an export, a form with its labels and feature names."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from dualstream.solvers.protocols import served_form
from dualstream.solvers.rows.class_names import class_label

_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Source:
    """Copied numbers of the state: writing can proceed while the model learns."""

    model: str
    member: str | None
    seq: int
    etag: str
    spec: Mapping[str, Any]
    form: served_form.Form
    classes: tuple[Any, ...]
    """In the order of the scores; for a binary model negative and positive; () for regression."""
    has_probabilities: bool
    name_of: Callable[[int], str | None]
    """Name of the hashed feature at an index from 0, if known."""
    named: np.ndarray | None = None
    """Indices from 0 of all hashed features that rows have had; None if some are not known."""

    @property
    def is_hashed(self) -> bool:
        return bool(self.spec["features"]["kind"] == "hashed")

    def names(self, features: np.ndarray) -> dict[str, str]:
        """index -> name of these features, from 1, where names are known."""
        texts = (
            (place + 1, self.name_of(place))
            for first in range(0, len(features), _PIECE)
            for place in features[first : first + _PIECE].tolist()
        )
        return {str(index): name for index, name in texts if name is not None}


def json_list(numbers: np.ndarray) -> msgspec.Raw:
    """Numbers as a JSON list, written in pieces: each keeps the interpreter's lock."""
    return _joined(
        numbers[first : first + _PIECE].tolist() for first in range(0, len(numbers), _PIECE)
    )


def json_list_of(items: Iterable[Any]) -> msgspec.Raw:
    """As `json_list`, for any items."""
    rest = iter(items)
    return _joined(iter(lambda: list(islice(rest, _PIECE)), []))


def _joined(pieces: Iterable[list[Any]]) -> msgspec.Raw:
    return msgspec.Raw(b"[" + b",".join(msgspec.json.encode(one)[1:-1] for one in pieces) + b"]")


def source_of(
    model: str,
    seq: int,
    etag: str,
    learner: Any,
    member: str | None,
    name_of: Callable[[int], str | None],
    named: np.ndarray | None = None,
) -> Source:
    """Source of the whole model, or of one member's own score, which is not calibrated.

    Raises UnknownMember, NotExpressible.
    """
    return Source(
        model=model,
        member=member,
        seq=seq,
        etag=etag,
        spec=learner.spec,
        form=served_form.served_form(learner) if member is None else learner.member_form(member),
        classes=_classes(learner),
        has_probabilities=member is None and served_form.gives_probabilities(learner),
        name_of=name_of,
        named=named,
    )


def _classes(learner: Any) -> tuple[Any, ...]:
    if learner.spec["task"] == "multiclass":
        return tuple(class_label(text) for text in served_form.classes_of(learner))
    if learner.spec["task"] == "regression":
        return ()
    return tuple(learner.spec["labels"] or (-1, 1))
