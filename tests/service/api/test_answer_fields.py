"""A feature adds fields to the answers of predict, or replaces some, by a part of the state."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from dualstream.service.api import responses
from dualstream.service.features import FEATURES
from dualstream.service.features.feature import Feature
from dualstream.service.replica.parts import AnswerField, Scored, StatePart
from dualstream.solvers import Batch, Outcome
from tests.service.conftest import SPEC

ROW = [1, 0, 0, 2, 0]
CLASSES = {"task": "multiclass"}


class RowsSoFar(StatePart):
    """Counts rows; labels of answers are (rows so far, score, probabilities of all classes)."""

    __slots__ = ("rows",)
    prefixes = ("rows_so_far",)

    def __init__(self) -> None:
        self.rows = 0

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Self:
        return cls()

    def on_learned(self, batch: Batch, outcome: Outcome, first_seq: int) -> None:
        self.rows += len(batch)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"rows_so_far.rows": np.array(self.rows)}

    def restore(self, arrays, names) -> None:
        self.rows = int(arrays["rows_so_far"]["rows"])

    def answers(self, scored: Scored) -> Sequence[AnswerField]:
        assert len(scored.rows) == len(scored.scores)
        chances = scored.probabilities
        if scored.classes is not None:
            chances = scored.classes.probabilities
        labels = [
            [self.rows, score, chance]
            for score, chance in zip(scored.scores.tolist(), chances.tolist(), strict=True)
        ]
        return [AnswerField("label", "labels", labels)]


FEATURE = Feature(name="rows_so_far", part=RowsSoFar.of)


@pytest.fixture
def server(serve):
    client = serve(features=(*FEATURES, FEATURE))
    assert client.put("/models/m", json=SPEC | {"loss": "logistic"}).status_code == 201
    for label in (1, -1, 1):
        client.post("/models/m/learn", json={"x": ROW, "y": label})
    return client


def label_of(score: float, probability: Any, rows: int = 3) -> list[Any]:
    return [rows, score, probability]


def test_field_of_one_row(server):
    for answer in (
        server.post("/models/m/predict", json={"x": ROW}).json(),
        server.get("/models/m/predict?x=1:1,4:2").json(),
        server.get("/predict?model=m&x=1:1,4:2").json(),
        server.post("/models/m/predict?remember=true", json={"id": "a", "x": ROW}).json(),
    ):
        assert answer["label"] == label_of(answer["score"], answer["probability"])


def test_field_of_many_rows_is_null_for_refused_rows(server):
    rows = {"x": [ROW, [1, 2], ROW]}
    answer = server.post("/models/m/predict", json=rows).json()
    score, probability = answer["scores"][0], answer["probabilities"][0]
    assert answer["labels"] == [label_of(score, probability), None, label_of(score, probability)]


def test_field_is_of_the_version_that_scores(server):
    assert server.post("/models/m/versions", json={"name": "v"}).status_code == 201
    server.post("/models/m/learn", json={"x": ROW, "y": 1})
    answer = server.post("/models/m/predict?version=v", json={"x": ROW}).json()
    assert answer["label"] == label_of(answer["score"], answer["probability"])
    assert server.post("/models/m/predict", json={"x": ROW}).json()["label"][0] == 4


def test_fields_of_classes_have_the_scores_of_all(serve):
    client = serve(features=(*FEATURES, FEATURE))
    client.put("/models/m", json=SPEC | {"loss": "logistic"} | CLASSES)
    for label in ("cat", "dog"):
        client.post("/models/m/learn", json={"x": ROW, "y": label})
    answer = client.post("/models/m/predict", json={"x": [ROW, ROW]}).json()
    for score, probability, label in zip(
        answer["scores"], answer["probabilities"], answer["labels"], strict=True
    ):
        assert label[:2] == [2, score]
        assert max(label[2]) == probability and sum(label[2]) == pytest.approx(1.0)


def test_field_of_slices_is_that_of_their_rows():
    slices = [
        ([1.0], ["a"], None, [AnswerField("label", "labels", [10])]),
        ([2.0, 3.0], ["b", "c"], None, [AnswerField("label", "labels", [20, 30])]),
    ]
    fields = responses._joined(slices)[3]
    assert fields == [AnswerField("label", "labels", [10, 20, 30])]


def test_field_is_null_where_the_score_is_not_finite():
    part = RowsSoFar()
    scored = Scored(Batch.from_dense([ROW, ROW]), np.array([1.0, np.inf]), np.ones(2), None)
    state = SimpleNamespace(parts=SimpleNamespace(answers=[part.answers]))
    [field] = responses._fields(state, [1.0, None], scored, None, None)
    assert field.values == [[0, 1.0, 1.0], None]
