"""A model that can unlearn samples."""

import zlib
from typing import Any

import numpy as np

from dualstream.service.codecs import ListedRows
from dualstream.service.features import ALL, FEATURES
from dualstream.service.features.feature import jobs_of
from dualstream.service.features.unlearning.controls import Unlearn
from dualstream.service.features.unlearning.state import digest_of
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.metrics import Telemetry
from dualstream.service.models import creation
from dualstream.service.models.model import Model
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.replica.requests import Request
from dualstream.service.settings import Settings


def key_of(id_: str) -> bytes:
    return make_key(KeyKind.SAMPLE, id_)


def unlearning(id_: str) -> Unlearn:
    return Unlearn(digest_of(key_of(id_)).hex())


DIM = 60
SPEC = {
    "algorithm": "dual_ascent",
    "loss": "hinge",
    "window": "exponential",
    "features": {"kind": "indexed", "dim": DIM},
    "retain": 20,
}


def sample(id_: str) -> dict[str, Any]:
    x = np.random.default_rng(zlib.crc32(id_.encode())).standard_normal(DIM)
    return {"x": x.tolist(), "y": int(x[0] > 0), "id": id_}


def registry_on(journal: Any) -> ModelRegistry:
    return ModelRegistry(journal, Settings(), Telemetry(), ALL, jobs_of(FEATURES))


async def of_five(registry: ModelRegistry, **more: Any) -> Model:
    """A model of five samples."""
    model, _ = await creation.create(registry, "m", SPEC | more)
    for i in range(5):
        await learn(model, str(i))
    return model


async def learn(model: Model, id_: str) -> None:
    inputs, ids = sample(id_), {0: id_}
    rows = ListedRows([0, DIM], [*range(DIM)], inputs["x"], [inputs["y"]], [1.0], DIM, ids=ids)
    await model.submit(Request.of(rows, None, None))
