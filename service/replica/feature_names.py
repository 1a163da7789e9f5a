"""Names of hashed features, as recorded in the journal. Part of a model's state.

A worker journals a pair of index and name with the rows in which it first saw the name. A replica
keeps the first 65,536 names, and the first name of each index.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from sys import getsizeof

import numpy as np

from dualstream.service.codecs.row_schema import MAX_NAMES
from dualstream.solvers import CorruptState, State

_INDEX_BYTES = 28


class FeatureNames:
    """Feature index -> name."""

    __slots__ = ("_by_index", "_text_bytes")

    def __init__(self) -> None:
        self._by_index: dict[int, str] = {}
        self._text_bytes = 0

    def __len__(self) -> int:
        return len(self._by_index)

    @property
    def bytes_held(self) -> int:
        """Memory in bytes. Each name is measured, because lengths vary."""
        by_index = self._by_index
        return getsizeof(by_index) + len(by_index) * _INDEX_BYTES + self._text_bytes

    @property
    def are_full(self) -> bool:
        """Do further features get no name?"""
        return len(self._by_index) >= MAX_NAMES

    def keep(self, pairs: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
        """Add names of indices that have none yet, up to MAX_NAMES. Return the added ones."""
        added = []
        for index, name in pairs:
            if self.are_full:
                break
            if index not in self._by_index:
                self._by_index[index] = name
                self._text_bytes += getsizeof(name)
                added.append((index, name))
        return added

    def pairs(self) -> list[tuple[int, str]]:
        """All indices and names, in order of arrival."""
        return list(self._by_index.items())

    def copy(self) -> "FeatureNames":
        """Return a copy."""
        names = FeatureNames()
        names._by_index, names._text_bytes = dict(self._by_index), self._text_bytes
        return names

    def get(self, index: int) -> str | None:
        """Name of the feature at index `index`, which counts from 0."""
        return self._by_index.get(index)

    def first(self, most: int) -> list[str]:
        """The first `most` names, in order of arrival."""
        return list(islice(self._by_index.values(), most))

    def state(self) -> State:
        """Return the names as arrays, in order of arrival."""
        encoded = [name.encode("utf-8", "surrogatepass") for name in self._by_index.values()]
        return {
            "places": np.array(list(self._by_index), np.int64),
            "ends": np.cumsum([len(part) for part in encoded], dtype=np.int64),
            "text": np.frombuffer(b"".join(encoded), np.uint8).copy(),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore from arrays; without arrays there are no names. Raises CorruptState."""
        if not state:
            self._by_index, self._text_bytes = {}, 0
            return
        try:
            text, ends = state["text"].tobytes(), state["ends"].tolist()
            starts = [0, *ends][: len(ends)]
            names = [
                text[start:end].decode("utf-8", "surrogatepass")
                for start, end in zip(starts, ends, strict=True)
            ]
            self._by_index = dict(zip(state["places"].tolist(), names, strict=True))
            self._text_bytes = sum(map(getsizeof, self._by_index.values()))
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptState(f"the feature names are damaged: {error!r}") from error
