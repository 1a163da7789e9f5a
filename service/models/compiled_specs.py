"""CompiledSpecs: cache of specifications whose kernels are loaded."""

import asyncio

from dualstream.service.codecs import RowLimits, RowSchema
from dualstream.service.models.sizeof import bytes_of
from dualstream.service.replica.features import Features
from dualstream.service.replica.replica import UNMEASURED
from dualstream.service.replica.spec import fixed_spec
from dualstream.solvers import Learner, make_learner
from dualstream.solvers.spec_cache import FixedSpec

MAX_SPECS = 1000
"""Specifications in the cache. Beyond this number it is cleared."""


class CompiledSpec:
    """What all models of one specification share.

    new_learner  the learner that was built to load the kernels, until a model takes it
    first_bytes  memory of a learner before its first row
    ratios       measured / estimated time of rows of the model that was loaded last
    """

    __slots__ = ("_limits", "_row_schema", "_spec", "first_bytes", "new_learner", "ratios")

    def __init__(self, spec: FixedSpec, learner: Learner, limits: RowLimits) -> None:
        self._spec, self._limits = spec, limits
        self.new_learner: Learner | None = learner
        self.first_bytes = bytes_of(learner)
        self.ratios = UNMEASURED
        row_schema = RowSchema(spec, limits)
        self._row_schema = None if row_schema.is_hashed else row_schema

    def row_schema(self) -> RowSchema:
        """The row schema of a model. Only schemas of hashed features belong to one model."""
        return self._row_schema or RowSchema(self._spec, self._limits)

    def take_learner(self) -> Learner | None:
        """A learner without rows, which no other caller gets; None: build one."""
        learner, self.new_learner = self.new_learner, None
        return learner


class CompiledSpecs:
    """Specifications by their resolved JSON."""

    def __init__(self, limits: RowLimits, features: Features) -> None:
        self._limits, self._features = limits, features
        self._specs: dict[bytes, CompiledSpec] = {}

    def find(self, text: bytes) -> CompiledSpec | None:
        """The specification. None: its kernels may not be loaded."""
        return self._specs.get(text)

    async def get(self, text: bytes) -> CompiledSpec:
        """The specification with its kernels loaded, so that no request compiles."""
        spec = self._specs.get(text)
        if spec is None:
            fixed = fixed_spec(text)
            learner = await asyncio.to_thread(self._load, fixed)
            if len(self._specs) >= MAX_SPECS:
                self._specs.clear()
            spec = self._specs[text] = CompiledSpec(fixed, learner, self._limits)
        return spec

    def _load(self, spec: FixedSpec) -> Learner:
        """Load all kernels of a specification. Returns a learner without rows."""
        self._features.parts(spec)
        return make_learner(spec)
