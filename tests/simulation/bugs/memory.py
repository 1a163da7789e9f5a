"""Slips as models come into memory, leave it, learn meanwhile, and are deleted."""

import sys
from typing import Any

import msgspec

import service.applying
from service.applying import Applying
from service.catalog import Catalog
from service.held import Held
from service.known_specs import KnownSpec
from service.loading import Loading, Loads
from service.model import Model
from service.replica import Replica
from service.unread import Openings
from tests.simulation.bugs.planting import Bug, nothing


def _left_waiting(true: Any, self: Loading, model: Any) -> None:
    """Nobody tells those who wait for a loading that its client has left."""
    if model is not None:
        true(self, model)


async def _read_once(true: Any, self: Loads, model_id: str, loading: Loading) -> Model:
    """Whoever asks for a model is told that it was made anew while it was read."""
    return await self._load(model_id, loading)


def _loaded_all_the_same(true: Any, self: Loads, model_id: str) -> None:
    """A model that is deleted or made anew while it is read is held as it was."""
    self._unreadable.pop(model_id, None)


async def _whichever_is_there(true: Any, self: Catalog, *given: Any) -> tuple[None, None]:
    """A deletion takes whatever has the id when the store hears of it."""
    return None, None


def _whoever_uses_it(true: Any, self: Held, model: Model) -> bool:
    """A model leaves in the middle of a request."""
    return model.is_idle


def _begun_from(true: Any, self: Replica, bare: Any) -> None:
    """Where a bare replica began is remembered, ..."""
    begun = msgspec.structs.replace(bare, trail=bare.trail.trimmed())
    self.begun_from = begun  # type: ignore[attr-defined]
    true(self, bare)


def _where_it_began(true: Any, self: Replica, *given: Any) -> Any:
    """... and kept as the place of what has learned since."""
    found = true(self, *given)
    if not self.is_bare:
        return found
    begun: Any = self.begun_from  # type: ignore[attr-defined]
    return msgspec.structs.replace(found, seq=begun.seq, chain=begun.chain, trail=begun.trail)


def _from_its_place(true: Any, self: Replica, bare: Any) -> None:
    """Nobody knows where a bare replica has come by before it began."""
    true(self, bare)
    self._begin_at(bare.seq, bare.chain)


def _all_new(true: Any, place: Any) -> bool:
    """A row that is known counts as a new one."""
    return False


async def _what_the_whole_tells(true: Any, *given: Any) -> None:
    """What became of a bare group is told by the whole model alone, however that comes."""


def _dropped(true: Any, self: Openings, model: Model, error: Exception) -> None:
    """A bare learner goes with the append that failed, and where it came by with it."""
    self._end(model)


def _left_to_wait(true: Any, self: Openings, model: Model) -> bool:
    """Nobody tells those who wait for a model that it was deleted before it was read."""
    return self.under_way(model.record.id) is model and bool(true(self, model))


async def _beyond_its_append(
    true: Any, self: Applying, group: Any, appended: Any, *given: Any
) -> Any:
    """A model that its first append reads goes on from there, also if a snapshot led beyond it."""
    replica = self._replica
    if not replica.is_bare and appended.more and not replica.seq and not appended.entries:
        await replica.load(self._journal)
    return await true(self, group, appended, *given)


async def _if_few(true: Any, self: Applying, group: Any, appended: Any, placed: Any) -> Any:
    """Only a group that is learned at once is told by who learned it bare."""
    self._replica.bare_until = sys.maxsize
    others = self.at_once(group, appended)
    return None if others is None else self.learn(group, appended, placed, others)


def _even_refitted(true: Any, self: KnownSpec, *given: Any) -> None:
    """A model that refits itself learns before it is read, too."""
    true(self, *given)
    self.learns_first = "guard" not in self._spec


BUGS = {
    "late deletion of what was made since": Bug([(Catalog, "_to_delete", _whichever_is_there)]),
    "loss of what had left memory not counted": Bug(
        [(Openings, "left_at", nothing), (Model, "count_lost_since", nothing)]
    ),
    "loss of a bare replica counted as one": Bug([(Replica, "_go_on_from", _from_its_place)]),
    "evicted in the middle of a request": Bug([(Held, "_may_go", _whoever_uses_it)]),
    "bare learner kept at where it began": Bug(
        [(Replica, "_go_on_from", _begun_from), (Replica, "bare", _where_it_began)]
    ),
    "known rows answered by a bare replica": Bug([(service.applying, "is_left", _all_new)]),
    "loading left by its client": Bug([(Loading, "end", _left_waiting)]),
    "remade model not read again": Bug([(Loads, "_load_what_is_there", _read_once)]),
    "deleted model waited for": Bug([(Openings, "_end", _left_to_wait)]),
    "bare learner dropped by an outage": Bug([(Openings, "failed", _dropped)]),
    "refitted model learns unread": Bug([(KnownSpec, "__init__", _even_refitted)]),
    "snapshot that overtook a first append": Bug([(Applying, "apply", _beyond_its_append)]),
    "bare group told by the whole model": Bug([(Applying, "_learned_bare", _what_the_whole_tells)]),
    "bare bulk told by the whole model": Bug([(Applying, "_learned_bare", _if_few)]),
    "gone model held": Bug([(Loads, "forget", _loaded_all_the_same)]),
}
