"""/docs tells of the hot routes, and each example in it is accepted as it stands."""

import asyncio
import json
import threading
from collections import Counter

import httpx
import pytest
from fastapi import FastAPI

from dualstream.service.api import dashboard
from dualstream.service.codecs import PARSERS
from dualstream.service.http.openapi import BINARY, LEARN_EXAMPLES, PREDICT_EXAMPLES

EXAMPLES = [
    (route, media, name, value)
    for route, examples in {"learn": LEARN_EXAMPLES, "predict": PREDICT_EXAMPLES}.items()
    for media, named in examples.items()
    for name, value in named.items()
]


@pytest.mark.parametrize(("route", "media", "name", "value"), EXAMPLES)
def test_every_example_is_accepted(client, route, media, name, value):
    spec = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 3}}
    client.put("/models/example", json=spec)
    body = value if isinstance(value, str) else json.dumps(value)
    answer = client.post(f"/models/example/{route}", content=body, headers={"content-type": media})
    assert answer.status_code == 200, answer.text
    assert "errors" not in answer.json()


def test_every_format_is_shown_of(client):
    paths = client.get("/openapi.json").json()["paths"]
    for route in ("learn", "predict"):
        body = paths[f"/models/{{model_id}}/{route}"]["post"]["requestBody"]
        assert set(body["content"]) == set(PARSERS)
    assert set(PARSERS) == {*LEARN_EXAMPLES, *BINARY} == {*PREDICT_EXAMPLES, *BINARY}


def test_document_has_examples_and_types(client):
    document = client.get("/openapi.json").json()
    learn = document["paths"]["/models/{model_id}/learn"]["post"]
    shown = learn["requestBody"]["content"]["application/json"]["examples"]
    assert shown["one sample"]["value"] == LEARN_EXAMPLES["application/json"]["one sample"]
    reference = learn["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    properties = document["components"]["schemas"][reference.rpartition("/")[2]]["properties"]
    assert {"seq", "count", "learned", "mistakes", "loss", "rejected", "duplicate"} <= set(
        properties
    )
    lines = learn["responses"]["200"]["content"]["application/x-ndjson"]["schema"]["anyOf"]
    assert any(one["$ref"].endswith("/LearnedStream") for one in lines)
    for path in (
        "/models/{model_id}/events",
        "/models/{model_id}/predict",
        "/predict",
        "/models",
        "/metrics",
        "/readyz",
    ):
        assert path in document["paths"]
    for action in ("events", "predict"):
        assert f"/models/{{model_id}}/{action}" in document["paths"]


def test_every_reference_in_the_document_leads_somewhere(client):
    document = client.get("/openapi.json").json()

    def references(node):
        if isinstance(node, dict):
            yield from [node["$ref"]] if "$ref" in node else []
            for child in node.values():
                yield from references(child)
        elif isinstance(node, list):
            for child in node:
                yield from references(child)

    for reference in references(document):
        position = document
        for step in reference.removeprefix("#/").split("/"):
            position = position[step]
    assert client.get("/docs").status_code == 200


def test_labels_that_come_later_are_shown_of(client):
    document = client.get("/openapi.json").json()["paths"]
    names = {p["name"] for p in document["/models/{model_id}/predict"]["post"]["parameters"]}
    assert {"remember", "default_label", "default_after_s"} <= names
    body = document["/models/{model_id}/labels"]["post"]["requestBody"]["content"]
    spec = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 3}}
    client.put("/models/example", json=spec)
    rows = {"samples": [{"x": [1, 0, 0], "id": id} for id in ("event-1", 7)]}
    for example in body["application/json"]["examples"].values():
        client.post("/models/example/predict?remember=true", json=rows)
        answer = client.post("/models/example/labels", json=example["value"])
        assert answer.status_code == 200 and "errors" not in answer.json(), answer.text


def test_every_answer_and_every_link_is_named(client):
    document = client.get("/openapi.json").json()
    operations = [one for path in document["paths"].values() for one in path.values()]
    by_id = {one["operationId"]: one for one in operations}
    assert len(by_id) == len(operations)
    linked = Counter()
    for operation in operations:
        assert "default" not in operation["responses"]
        for status, answer in operation["responses"].items():
            if int(status) >= 400 and operation["operationId"] not in ("readyz", "read_ready"):
                assert set(answer["content"]) == {"application/problem+json"}
            for link in answer.get("links", {}).values():
                target = by_id[link["operationId"]]
                linked[link["operationId"]] += 1
                previous = {one["name"]: one for one in target.get("parameters", ())}
                assert set(link.get("parameters", {})) <= set(previous)
                needed = {name for name, one in previous.items() if one["in"] == "path"}
                assert needed <= set(link["parameters"])
    of_models = {one for one in by_id if "model_id" in str(by_id[one].get("parameters"))}
    assert of_models | {"predict_by_query"} == set(linked)


def test_the_description_is_written_once_and_not_in_the_event_loop(monkeypatch):
    results = []
    written = dashboard._written

    def counted(app):
        results.append(threading.current_thread() is threading.main_thread())
        return written(app)

    monkeypatch.setattr(dashboard, "_written", counted)
    app = FastAPI(openapi_url=None)
    app.include_router(dashboard.router)

    async def all_at_once() -> list[bytes]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            got = await asyncio.gather(*(client.get("/openapi.json") for _ in range(5)))
            return [answer.content for answer in got]

    texts = asyncio.run(all_at_once())
    assert results == [False] and len(set(texts)) == 1 and json.loads(texts[0])["info"]
