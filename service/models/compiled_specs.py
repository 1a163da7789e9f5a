"""Cache of specifications whose kernels are loaded."""

import asyncio

from dualstream.service.codecs import RowLimits, RowSchema
from dualstream.service.models.sizeof import bytes_of
from dualstream.service.replica.replica import UNMEASURED
from dualstream.service.replica.spec import fixed_spec
from dualstream.solvers import FixedSpec, make_learner

MAX_SPECS = 1000
"""Known specifications. Beyond this number the cache is cleared."""


class KnownSpec:
    """What all models of one specification share.

    first_bytes  memory of a learner before its first row
    ratios       measured / estimated time of rows of the model that was loaded last
    """

    __slots__ = ("_row_schema", "_limits", "_spec", "first_bytes", "ratios")

    def __init__(self, spec: FixedSpec, first_bytes: int, limits: RowLimits) -> None:
        self._spec, self._limits = spec, limits
        self.first_bytes = first_bytes
        self.ratios = UNMEASURED
        row_schema = RowSchema(spec, limits)
        self._row_schema = None if row_schema.is_hashed else row_schema

    def row_schema(self) -> RowSchema:
        """The row schema of a model. Only schemas of hashed features belong to one model."""
        return self._row_schema or RowSchema(self._spec, self._limits)


class KnownSpecs:
    """Known specifications, by their resolved JSON."""

    def __init__(self, limits: RowLimits) -> None:
        self._limits = limits
        self._known: dict[bytes, KnownSpec] = {}

    def find(self, text: bytes) -> KnownSpec | None:
        """The known specification. None: its kernels may not be loaded."""
        return self._known.get(text)

    async def get(self, text: bytes) -> KnownSpec:
        """The specification with its kernels loaded, so that no request compiles."""
        known = self._known.get(text)
        if known is None:
            spec = fixed_spec(text)
            learner = await asyncio.to_thread(make_learner, spec)
            if len(self._known) >= MAX_SPECS:
                self._known.clear()
            known = self._known[text] = KnownSpec(spec, bytes_of(learner), self._limits)
        return known
