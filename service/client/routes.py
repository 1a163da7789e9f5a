"""The routes of the API as calls; Client and AsyncClient make the same ones."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from service.client.answers import (
    Certificate,
    ChangePage,
    Comparison,
    Learned,
    LearnedStream,
    Member,
    Members,
    Model,
    ModelPage,
    Predicted,
    PredictedMany,
    Resumed,
    RolledBack,
    Support,
    Timeline,
    Unlearned,
    Version,
    Versions,
    Weights,
)
from service.client.calls import JSON, Call, asked, encoded, model_path, with_key
from service.client.errors import BadInput
from service.client.values import labels_body
from service.cuts import CHUNK_BYTES

Spec = Mapping[str, Any]


def new_key() -> str:
    """A key that no other request has."""
    return uuid4().hex


def create(model: str, spec: Spec | None, replace: bool) -> Call[Model]:
    headers = {"if-match": "*"} if replace else {}
    return Call("PUT", model_path(model), Model, {}, headers, encoded(spec or {}))


def get(model: str, digest: bool) -> Call[Model]:
    return Call("GET", model_path(model), Model, asked(digest=digest))


def page(after: str) -> Call[ModelPage]:
    return Call("GET", "/models", ModelPage, asked(after=after, limit=1000))


def delete(model: str) -> Call[None]:
    return Call("DELETE", model_path(model), None)


def learn(
    model: str, kind: str, body: bytes, key: str, scores: bool = False
) -> Call[Learned] | Call[LearnedStream]:
    headers = {"content-type": kind, **with_key(key)}
    # The server cuts a longer body, and tells sums of it.
    is_cut = len(body) > CHUNK_BYTES and kind != JSON
    path, query = model_path(model, "learn"), asked(scores=scores)
    if is_cut:
        return Call("POST", path, LearnedStream, query, headers, body)
    return Call("POST", path, Learned, query, headers, body)


def learn_labels(model: str, labels: Mapping[str | int, Any], key: str) -> Call[Learned]:
    path = model_path(model, "labels")
    return Call("POST", path, Learned, {}, with_key(key), labels_body(labels))


def predict(model: str, kind: str, body: bytes, **query: Any) -> Call[PredictedMany]:
    path = model_path(model, "predict")
    return Call("POST", path, PredictedMany, asked(**query), {"content-type": kind}, body)


def predict_single(model: str, body: bytes, **query: Any) -> Call[Predicted]:
    path = model_path(model, "predict")
    return Call("POST", path, Predicted, asked(**query), {"content-type": JSON}, body)


def predict_json(model: str, body: bytes, **query: Any) -> Call[dict[str, Any]]:
    """Of a body that may hold one row or many."""
    path = model_path(model, "predict")
    return Call("POST", path, dict[str, Any], asked(**query), {"content-type": JSON}, body)


def metrics(model: str) -> Call[dict[str, Any]]:
    return Call("GET", model_path(model, "metrics"), dict[str, Any])


def timeline(model: str) -> Call[Timeline]:
    return Call("GET", model_path(model, "timeline"), Timeline)


def weights(model: str, top: int, member: str | None) -> Call[Weights]:
    return Call("GET", model_path(model, "weights"), Weights, asked(top=top, member=member))


def support(model: str) -> Call[Support]:
    return Call("GET", model_path(model, "support"), Support)


def certificate(model: str, member: str | None) -> Call[Certificate]:
    return Call("GET", model_path(model, "certificate"), Certificate, asked(member=member))


def export(model: str, format: str, member: str | None) -> Call[bytes]:
    return Call("GET", model_path(model, "export"), bytes, asked(format=format, member=member))


def members(model: str) -> Call[Members]:
    return Call("GET", model_path(model, "members"), Members)


def add_member(model: str, spec: Spec, key: str) -> Call[Member]:
    return Call("POST", model_path(model, "members"), Member, {}, with_key(key), encoded(spec))


def remove_member(model: str, name: str) -> Call[None]:
    return Call("DELETE", model_path(model, "members", name), None)


def promote(model: str, name: str) -> Call[Member]:
    return Call("POST", model_path(model, "members", name, "promote"), Member)


def end_promotion(model: str) -> Call[Members]:
    return Call("DELETE", model_path(model, "promotion"), Members)


def compare(model: str, a: str, b: str, level: float) -> Call[Comparison]:
    return Call("GET", model_path(model, "compare"), Comparison, asked(a=a, b=b, level=level))


def take_version(model: str, name: str | None, note: str) -> Call[Version]:
    body = encoded({"name": name, "note": note})
    return Call("POST", model_path(model, "versions"), Version, {}, _JSON_BODY, body)


def versions(model: str) -> Call[Versions]:
    return Call("GET", model_path(model, "versions"), Versions)


def delete_version(model: str, name: str) -> Call[None]:
    return Call("DELETE", model_path(model, "versions", name), None)


def roll_back(model: str, version: str | None, seq: int | None, key: str) -> Call[RolledBack]:
    if (version is None) == (seq is None):
        raise BadInput("name a version or a seq, one of them")
    body = encoded({"version": version} if seq is None else {"seq": seq})
    headers = {**_JSON_BODY, **with_key(key)}
    return Call("POST", model_path(model, "rollback"), RolledBack, {}, headers, body)


def resume(model: str, rows: str, key: str) -> Call[Resumed]:
    if rows not in ("learn", "drop"):
        raise BadInput(
            f"the rows in quarantine are learned (learn) or dropped (drop), got {rows!r}"
        )
    query = {"rows": rows}
    return Call("POST", model_path(model, "resume"), Resumed, query, with_key(key))


def unlearn(model: str, sample: str | int) -> Call[Unlearned]:
    return Call("DELETE", model_path(model, "samples", str(sample)), Unlearned)


def audit(model: str | None, after: str) -> Call[ChangePage]:
    return Call("GET", "/audit", ChangePage, asked(model=model, after=after, limit=1000))


def ready() -> Call[dict[str, Any]]:
    return Call("GET", "/readyz", dict[str, Any], {"verbose": ""})


_JSON_BODY = {"content-type": JSON}
