"""Minimal FastAPI service: validates a sample by pydantic, learns and stores nothing."""

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Sample(BaseModel):
    x: dict[str, float]
    y: float


@app.post("/models/bench/learn")
async def learn(sample: Sample) -> dict[str, bool]:
    return {"ok": True}


class NamedSample(BaseModel):
    x: dict[str, float | str]
    y: float


@app.post("/models/named/learn")
async def learn_named(sample: NamedSample) -> dict[str, bool]:
    return {"ok": True}
