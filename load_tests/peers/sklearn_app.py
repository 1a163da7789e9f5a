"""scikit-learn's decision_function of one row in a FastAPI process."""

import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel
from sklearn.linear_model import SGDClassifier

from dualstream.service.cli.demo.adult import adult_lines
from dualstream.solvers import Batch

DIM = 123

app = FastAPI()


class Sample(BaseModel):
    x: dict[str, float]


def _trained() -> SGDClassifier:
    batch = Batch.from_libsvm(b"\n".join(adult_lines()[:5000]), DIM).batch
    x = np.zeros((len(batch), DIM))
    x[np.repeat(np.arange(len(batch)), np.diff(batch.indptr)), batch.indices] = batch.values
    return SGDClassifier().fit(x, batch.labels)


model = _trained()


@app.post("/models/bench/predict")
async def predict(sample: Sample) -> dict[str, float]:
    row = np.zeros((1, DIM))
    for index, value in sample.x.items():
        row[0, int(index) - 1] = value
    return {"score": float(model.decision_function(row)[0])}
