"""Class names of multiclass models: the canonical JSON text of a label.

`1.0` and `1` are one class, `"1"` is another, and so is `true`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState
from dualstream.solvers.jit import Floats

MAX_CLASSES = 1000
"""Maximum number of classes of a model."""


def class_text(label: bool | int | float | str) -> str:
    """The name of a label's class. Numbers must be finite."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return json.dumps(label, ensure_ascii=False, allow_nan=False)


def class_label(text: str) -> bool | int | float | str:
    """The label, as answers return it, of the class with this name."""
    label: bool | int | float | str = json.loads(text)
    return label


def class_indices(texts: Sequence[str]) -> tuple[Floats, tuple[str, ...]]:
    """Labels (n,) and the tuple of classes for a Batch, from the class name of each row."""
    class_index: dict[str, int] = {}
    labels = [class_index.setdefault(text, len(class_index)) for text in texts]
    return np.array(labels, np.float64), tuple(class_index)


def names_state(names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Class names as arrays of a state."""
    encoded = [name.encode("utf-8", "surrogatepass") for name in names]
    return {
        "class_text": np.frombuffer(b"".join(encoded), np.uint8).copy(),
        "class_ends": np.cumsum([len(part) for part in encoded], dtype=np.int64),
    }


def names_of(state: Mapping[str, npt.NDArray[Any]]) -> tuple[str, ...]:
    """Class names from such a state. Raises CorruptState."""
    try:
        text, ends = state["class_text"].tobytes(), state["class_ends"].tolist()
        starts = [0, *ends][: len(ends)]
        if any(end < start for start, end in zip(starts, ends, strict=True)):
            raise ValueError("ends are not increasing")
        if (ends[-1] if ends else 0) != len(text):
            raise ValueError("the text does not have the length that the ends give")
        spans = zip(starts, ends, strict=True)
        names = tuple(text[start:end].decode("utf-8", "surrogatepass") for start, end in spans)
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptState(f"the names of the classes are damaged: {error!r}") from error
    if len(set(names)) != len(names) or len(names) > MAX_CLASSES:
        raise CorruptState("the names of the classes are duplicated, or too many")
    return names
