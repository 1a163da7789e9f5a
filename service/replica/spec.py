"""Model specifications as stored: verified, and parsed once per distinct text."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from dualstream.service.concurrency import INLINE_S, run_long_in_thread
from dualstream.service.journal.chain import is_of_spec
from dualstream.service.journal.protocol import ModelRecord
from dualstream.service.journal.record import CorruptRecord
from dualstream.solvers.spec import cost
from dualstream.solvers.spec_cache import FixedSpec

T = TypeVar("T")

MAX_SPECS = 1000
"""Size of the cache of parsed specifications."""


class DamagedSpec(CorruptRecord):
    """The stored spec is not the one that the model was created with."""


def canonical(spec: Mapping[str, Any]) -> bytes:
    """JSON of a specification. Equal specifications give equal bytes."""
    return msgspec.json.encode(spec, order="sorted")


def read_spec(text: bytes) -> dict[str, Any]:
    """Parse a stored specification."""
    spec: dict[str, Any] = msgspec.json.decode(text)
    return spec


@lru_cache(MAX_SPECS)
def fixed_spec(text: bytes) -> FixedSpec:
    """Parse a resolved specification. Models with the same text share the result."""
    return FixedSpec(read_spec(text))


def check_spec(record: ModelRecord) -> None:
    """Raise DamagedSpec if the stored spec is not the one that the model was created with.

    Rows learned with another spec give another state, and nothing else detects that.
    """
    if not is_of_spec(record.incarnation, record.spec):
        raise DamagedSpec("the spec is damaged: it is not the one that the model was created with")


def spec_of(record: ModelRecord) -> FixedSpec:
    """The specification of a model. Raises DamagedSpec."""
    check_spec(record)
    return fixed_spec(bytes(record.spec))


async def run_making(spec: Mapping[str, Any], work: Callable[..., T], *args: Any) -> T:
    """Do work that makes a learner of a specification, in a thread if it takes long."""
    if cost.making_seconds(spec) <= INLINE_S:
        return work(*args)
    return await run_long_in_thread(work, *args)
