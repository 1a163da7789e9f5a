"""Specifications whose kernels are loaded, and what is known of all models that have one."""

import asyncio

from dualstream.service.codecs import RowLimits, RowSchema
from dualstream.service.models.sizeof import bytes_of
from dualstream.service.replica.spec import fixed_spec
from dualstream.solvers import FixedSpec, make_learner

MAX_SPECS = 1000
"""So many are known at once."""
S_PER_ROW = 1e-6
"""What a row is taken to cost until some were learned."""


class KnownSpec:
    """What follows from a specification, and what its models have shown.

    first_bytes  what a learner takes before its first row
    s_per_row    about what learning a row takes, in seconds
    """

    __slots__ = ("_row_schema", "_limits", "_spec", "first_bytes", "s_per_row")

    def __init__(self, spec: FixedSpec, first_bytes: int, limits: RowLimits) -> None:
        self._spec, self._limits = spec, limits
        self.first_bytes = first_bytes
        self.s_per_row = S_PER_ROW
        row_schema = RowSchema(spec, limits)
        self._row_schema = None if row_schema.is_hashed else row_schema

    def row_schema(self) -> RowSchema:
        """A model's: its own where it tells names, and else that of all of them."""
        return self._row_schema or RowSchema(self._spec, self._limits)


class KnownSpecs:
    """By their text, resolved."""

    def __init__(self, limits: RowLimits) -> None:
        self._limits = limits
        self._known: dict[bytes, KnownSpec] = {}

    def find(self, text: bytes) -> KnownSpec | None:
        """What is known of it; None where its kernels may not be loaded."""
        return self._known.get(text)

    async def get(self, text: bytes) -> KnownSpec:
        """As `find`, its kernels loaded if they were not: no request ever compiles."""
        known = self._known.get(text)
        if known is None:
            spec = fixed_spec(text)
            learner = await asyncio.to_thread(make_learner, spec)
            if len(self._known) >= MAX_SPECS:
                self._known.clear()
            known = self._known[text] = KnownSpec(spec, bytes_of(learner), self._limits)
        return known
