"""A model's specification as the store has it: checked, and read once for all that have it."""

from functools import lru_cache
from typing import Any

import msgspec

from dualstream.service.journal.chain import is_of_spec
from dualstream.service.journal.protocol import ModelRecord
from dualstream.service.journal.record import CorruptRecord
from dualstream.solvers import FixedSpec

MAX_SPECS = 1000
"""So many are remembered, with what follows from them."""
REMOVED_FIELDS = ("compare_windows",)
"""Fields of older stores that changed nothing that a model learns."""


class DamagedSpec(CorruptRecord):
    """The spec of a model is not the one that it was made with."""


def read_spec(text: bytes) -> dict[str, Any]:
    """A stored specification, without fields that this version no longer has."""
    spec: dict[str, Any] = msgspec.json.decode(text)
    return {name: value for name, value in spec.items() if name not in REMOVED_FIELDS}


@lru_cache(MAX_SPECS)
def fixed_spec(text: bytes) -> FixedSpec:
    """A resolved specification, one for all models that have it."""
    return FixedSpec(read_spec(text))


def check_spec(record: ModelRecord) -> None:
    """Raise DamagedSpec where the store has another spec than the model was made with.

    The rows in its journal would be learned by that one, and nobody could tell.
    """
    if not is_of_spec(record.incarnation, record.spec):
        raise DamagedSpec("the spec is damaged: it is not the one that the model was made with")
