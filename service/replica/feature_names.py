"""The names of hashed features, as the journal told them: part of a model's state.

Pairs of place and name ride along with the rows in which a worker saw the name first. A replica
keeps the first 65,536 of them, and of a place the first name.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from sys import getsizeof

import numpy as np

from dualstream.service.codecs.row_schema import MAX_NAMES
from dualstream.solvers import CorruptState, State

_PLACE_BYTES = 28


class FeatureNames:
    """place -> name."""

    __slots__ = ("_by_place", "_text_bytes")

    def __init__(self) -> None:
        self._by_place: dict[int, str] = {}
        self._text_bytes = 0

    def __len__(self) -> int:
        return len(self._by_place)

    @property
    def bytes_held(self) -> int:
        """What the names take of memory, each counted: they may be long or short as they come."""
        by_place = self._by_place
        return getsizeof(by_place) + len(by_place) * _PLACE_BYTES + self._text_bytes

    def keep(self, pairs: Iterable[tuple[int, str]]) -> None:
        """Keep these names, as long as there is room, where the place has none yet."""
        for place, name in pairs:
            if len(self._by_place) >= MAX_NAMES:
                return
            if place not in self._by_place:
                self._by_place[place] = name
                self._text_bytes += getsizeof(name)

    def copy(self) -> "FeatureNames":
        """The names as they are now."""
        names = FeatureNames()
        names._by_place, names._text_bytes = dict(self._by_place), self._text_bytes
        return names

    def get(self, place: int) -> str | None:
        """The name of the feature at `place` (from 0)."""
        return self._by_place.get(place)

    def first(self, most: int) -> list[str]:
        """The names that came first."""
        return list(islice(self._by_place.values(), most))

    def state(self) -> State:
        """As arrays, in the order in which the names came."""
        encoded = [name.encode("utf-8", "surrogatepass") for name in self._by_place.values()]
        return {
            "places": np.array(list(self._by_place), np.int64),
            "ends": np.cumsum([len(part) for part in encoded], dtype=np.int64),
            "text": np.frombuffer(b"".join(encoded), np.uint8).copy(),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Be in this state; without arrays there are no names. Raises CorruptState."""
        if not state:
            self._by_place, self._text_bytes = {}, 0
            return
        try:
            text, ends = state["text"].tobytes(), state["ends"].tolist()
            starts = [0, *ends][: len(ends)]
            names = [
                text[start:end].decode("utf-8", "surrogatepass")
                for start, end in zip(starts, ends, strict=True)
            ]
            self._by_place = dict(zip(state["places"].tolist(), names, strict=True))
            self._text_bytes = sum(map(getsizeof, self._by_place.values()))
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptState(f"the names of the features are damaged: {error!r}") from error
