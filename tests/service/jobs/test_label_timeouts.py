"""Label timeouts: a model whose waiting rows cannot be read keeps no other model waiting."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace as Fake
from typing import Any

import pytest

from dualstream.service.jobs import label_timeouts
from dualstream.service.jobs.label_timeouts import DefaultLabels
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.journal.record import RecordError


class Store:
    """A store in which three models have an overdue row each."""

    async def awaiting_labels(self) -> list[Any]:
        return [Fake(model=id_, rows=1, is_due=True, incarnation="i") for id_ in "abc"]

    async def overdue(self, model: str, incarnation: str, most: int) -> Any:
        return Fake(rows=[Fake(key=b"k")], expired=0)


class Registry:
    """Has every model."""

    counters = Fake(
        saw_waiting=lambda rows: None,
        saw_expired=lambda model, rows: None,
        saw_default_labels=lambda rows: None,
    )

    def pinned(self, model_id: str) -> Any:
        return nullcontext()

    async def get(self, model_id: str) -> Any:
        return Fake(record=Fake(id=model_id, incarnation="i"))


@pytest.mark.parametrize(
    ("error", "learned"), [(RecordError("damaged"), ["b", "c"]), (JournalUnavailable("away"), [])]
)
def test_a_damaged_row_of_one_model_stops_no_other(monkeypatch, error, learned):
    results = []

    async def learn_defaults(model: Any, rows: Any) -> Any:
        if model.record.id == "a":
            raise error
        results.append(model.record.id)
        return Fake(position=Fake(count=1))

    monkeypatch.setattr(label_timeouts, "learn_defaults", learn_defaults)
    with pytest.raises(type(error)):
        asyncio.run(DefaultLabels(Registry(), Store()).sweep())
    assert results == learned
