"""River in a FastAPI process: predict, then learn; nothing is durable."""

from fastapi import FastAPI
from pydantic import BaseModel
from river import linear_model, preprocessing

app = FastAPI()
model = preprocessing.StandardScaler() | linear_model.LogisticRegression()


class Sample(BaseModel):
    x: dict[str, float]
    y: float


class Samples(BaseModel):
    samples: list[Sample]


def _learn(sample: Sample) -> float:
    probability = model.predict_proba_one(sample.x)[True]
    model.learn_one(sample.x, sample.y > 0)
    return probability


@app.post("/models/bench/learn")
async def learn(sample: Sample) -> dict[str, float]:
    return {"score": _learn(sample)}


@app.post("/batch")
async def learn_many(body: Samples) -> dict[str, float]:
    return {"score": sum(map(_learn, body.samples))}
