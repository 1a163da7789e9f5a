"""A part of the state adds fields to GET metrics."""

from collections.abc import Mapping
from typing import Any, Self

from dualstream.service.features import FEATURES
from dualstream.service.features.feature import Feature
from dualstream.service.replica.parts import StatePart
from dualstream.solvers import Batch, Outcome
from tests.service.conftest import SPEC


class RowsSoFar(StatePart):
    __slots__ = ("rows",)
    prefixes = ("rows_so_far",)

    def __init__(self) -> None:
        self.rows = 0

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Self | None:
        return None if spec["loss"] == "logistic" else cls()

    def on_learned(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        self.rows += len(batch)

    def metrics(self) -> Mapping[str, Any]:
        return {"rows_so_far": {"rows": self.rows}}


def test_metrics_have_the_fields_of_a_part(serve):
    client = serve(features=(*FEATURES, Feature(name="rows_so_far", part=RowsSoFar.of)))
    for model, loss in (("with", "hinge"), ("without", "logistic")):
        assert client.put(f"/models/{model}", json=SPEC | {"loss": loss}).status_code == 201
        client.post(f"/models/{model}/learn", json={"x": [[1, 0, 0, 2, 0]] * 3, "y": [1, -1, 1]})
    assert client.get("/models/with/metrics").json()["rows_so_far"] == {"rows": 3}
    assert "rows_so_far" not in client.get("/models/without/metrics").json()
