"""Slips as models come into memory, leave it, and are deleted."""

import asyncio
from typing import Any

from dualstream.service.models import creation
from dualstream.service.models.cache import ModelCache
from dualstream.service.models.model import Model
from dualstream.service.models.registry import ModelRegistry
from tests.simulation.bugs.planting import Bug, nothing


async def _load_with_client(true: Any, self: ModelRegistry, model_id: str) -> Model:
    """Requests that wait for a load fail if its client leaves."""
    load = self._loads.get(model_id)
    if load is not None:
        return await asyncio.shield(load)
    load = self._loads[model_id] = asyncio.ensure_future(self._load(model_id))
    return await load


async def _read_once(true: Any, self: ModelRegistry, model_id: str) -> Any:
    """A request for a model fails because the model was created again during the load."""
    return await self._recovered(model_id)


def _loaded_all_the_same(true: Any, self: ModelRegistry, model_id: str) -> None:
    """A model that is deleted or created again during its load is cached as it was."""
    self.unreadable.pop(model_id, None)


async def _whichever_is_there(true: Any, *args: Any) -> tuple[None, None]:
    """A deletion removes whatever has the id when it reaches the store."""
    return None, None


def _whoever_uses_it(true: Any, self: ModelCache, model: Model) -> bool:
    """A model leaves in the middle of a request."""
    return model.is_idle


BUGS = {
    "late deletion of what was made since": Bug([(creation, "_to_delete", _whichever_is_there)]),
    "loss of what had left memory not counted": Bug(
        [(ModelRegistry, "_keep_lineage", nothing), (Model, "count_lost_since", nothing)]
    ),
    "evicted in the middle of a request": Bug([(ModelCache, "_may_go", _whoever_uses_it)]),
    "loading left by its client": Bug([(ModelRegistry, "_loaded", _load_with_client)]),
    "remade model not read again": Bug([(ModelRegistry, "_recovered_last", _read_once)]),
    "gone model held": Bug([(ModelRegistry, "forget_load", _loaded_all_the_same)]),
}
