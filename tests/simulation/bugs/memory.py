"""Slips as models come into memory, leave it, and are deleted."""

from typing import Any

from dualstream.service.models.cache import ModelCache
from dualstream.service.models.loader import Loading, ModelLoader
from dualstream.service.models.model import Model
from dualstream.service.models.registry import ModelRegistry
from tests.simulation.bugs.planting import Bug, nothing


def _left_waiting(true: Any, self: Loading, model: Any) -> None:
    """Requests that wait for a load are not notified that its client has left."""
    if model is not None:
        true(self, model)


async def _read_once(true: Any, self: ModelLoader, model_id: str, loading: Loading) -> Model:
    """A request for a model fails because the model was created again during the load."""
    return await self._load(model_id, loading)


def _loaded_all_the_same(true: Any, self: ModelLoader, model_id: str) -> None:
    """A model that is deleted or created again during its load is cached as it was."""
    self._unreadable.pop(model_id, None)


async def _whichever_is_there(true: Any, self: ModelRegistry, *given: Any) -> tuple[None, None]:
    """A deletion removes whatever has the id when it reaches the store."""
    return None, None


def _whoever_uses_it(true: Any, self: ModelCache, model: Model) -> bool:
    """A model leaves in the middle of a request."""
    return model.is_idle


BUGS = {
    "late deletion of what was made since": Bug(
        [(ModelRegistry, "_to_delete", _whichever_is_there)]
    ),
    "loss of what had left memory not counted": Bug(
        [(ModelLoader, "remember_lineage", nothing), (Model, "count_lost_since", nothing)]
    ),
    "evicted in the middle of a request": Bug([(ModelCache, "_may_go", _whoever_uses_it)]),
    "loading left by its client": Bug([(Loading, "end", _left_waiting)]),
    "remade model not read again": Bug([(ModelLoader, "_load_what_is_there", _read_once)]),
    "gone model held": Bug([(ModelLoader, "forget", _loaded_all_the_same)]),
}
