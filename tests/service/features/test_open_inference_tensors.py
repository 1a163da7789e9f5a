"""Tensors of the Open Inference Protocol: datatypes in JSON, and binary data as clients send it."""

import json
import struct

import numpy as np
import pytest

from tests.service.conftest import assert_problem

INDEXED = {"algorithm": "sgd", "loss": "logistic", "features": {"kind": "indexed", "dim": 1}}
NAMED = INDEXED | {"features": {"kind": "hashed", "bits": 10}}
PATH = "/v2/models/{}/infer"
HEADER = "inference-header-content-length"

ACCEPTED = {
    "BOOL": [True, False],
    "INT8": [-128, 127, 0, 1.0],
    "INT16": [-(2**15), 2**15 - 1],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**53), 2**53, 7.0],
    "UINT8": [0, 255],
    "UINT16": [0, 2**16 - 1],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**53],
    "FP16": [-65504.0, 0.1, 3],
    "FP32": [-3.4028234663852886e38, 0.1, 3],
    "FP64": [-1e100, 0.1, 3],
}
REFUSED = {
    "BOOL": [0, 1, "true", 1.5],
    "INT8": [-129, 128, 1.5, True, "1"],
    "INT16": [-(2**15) - 1, 2**15, 1e5],
    "INT32": [-(2**31) - 1, 2**31, 0.5],
    "INT64": [1.5, 2**63, -(2**63) - 1, True, "1", 1e19],
    "UINT8": [-1, 300, 256, 1.5, False],
    "UINT16": [-1, 2**16],
    "UINT32": [-1, 2**32],
    "UINT64": [-1, 2**64, 0.1],
    "FP16": [65505.0, -1e5, True, "1.5"],
    "FP32": [1e39, True, "nan"],
    "FP64": [True, "1", {}],
    "BYTES": [1, 1.5, True, {}],
    "BF16": [1.5],
    "FP8": [1.5],
    "fp64": [1.5],
}
DTYPES = {
    "BOOL": "?",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}


def binary_strings(texts: list[str]) -> bytes:
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


def tensor(name: str, datatype: str, data: list, shape: list | None = None) -> dict:
    return {
        "name": name,
        "datatype": datatype,
        "shape": [len(data), 1] if shape is None else shape,
        "data": data,
    }


def binary_request(inputs: list[dict], **more) -> tuple[bytes, dict[str, str]]:
    """Body and headers as tritonclient makes them by default: data as bytes after the JSON."""
    head, blobs = [], b""
    for one in inputs:
        shown = {name: value for name, value in one.items() if name != "data"}
        if one["datatype"] == "BYTES":
            blob = binary_strings(one["data"])
        else:
            blob = np.array(one["data"], DTYPES[one["datatype"]]).tobytes()
        head.append(shown | {"parameters": {"binary_data_size": len(blob)}})
        blobs += blob
    text = json.dumps({"inputs": head} | more).encode()
    return text + blobs, {"Inference-Header-Content-Length": str(len(text))}


def outputs_of(answer) -> dict[str, list]:
    """Values of an answer by output, read as tritonclient reads them."""
    assert answer.status_code == 200, answer.text
    if HEADER not in answer.headers:
        return {one["name"]: one["data"] for one in answer.json()["outputs"]}
    length = int(answer.headers[HEADER])
    result, rest = {}, answer.content[length:]
    for one in json.loads(answer.content[:length])["outputs"]:
        size = one.get("parameters", {}).get("binary_data_size")
        if size is None:
            result[one["name"]] = one["data"]
            continue
        blob, rest = rest[:size], rest[size:]
        if one["datatype"] == "BYTES":
            texts = []
            while blob:
                (length,) = struct.unpack_from("<I", blob)
                texts.append(blob[4 : 4 + length].decode())
                blob = blob[4 + length :]
            result[one["name"]] = texts
        else:
            result[one["name"]] = np.frombuffer(blob, DTYPES[one["datatype"]]).tolist()
        assert one["shape"] == [len(result[one["name"]])]
    assert rest == b""
    return result


@pytest.fixture(scope="module")
def learned(shared_client):
    """A client with the models `i` (indexed) and `n` (named features), both learned."""
    client = shared_client
    for name, spec in (("i", INDEXED), ("n", NAMED | {"labels": ["no", "ja, s\u00e5"]})):
        assert client.put(f"/models/{name}", json=spec).status_code == 201
    rows = {"x": [[1.0], [-1.0]] * 20, "y": [1, 0] * 20}
    assert client.post("/models/i/learn", json=rows).status_code == 200
    samples = [
        {"x": {"a": 1, "city": "Oslo"}, "y": "no"},
        {"x": {"a": 2, "city": "R\u00f8st", "is": True}, "y": "ja, s\u00e5"},
    ]
    assert client.post("/models/n/learn", json={"samples": samples * 20}).status_code == 200
    return client


@pytest.mark.parametrize("datatype", ACCEPTED)
def test_values_of_a_datatype_score_as_in_predict_also_as_binary_data(learned, datatype):
    values = ACCEPTED[datatype]
    expected = learned.post("/models/i/predict", json={"x": [[float(v)] for v in values]}).json()
    got = learned.post(PATH.format("i"), json={"inputs": [tensor("x", datatype, values)]})
    assert outputs_of(got)["scores"] == expected["scores"]
    body, headers = binary_request([tensor("x", datatype, values)])
    exact = [[float(v)] for v in np.array(values, DTYPES[datatype]).tolist()]
    expected = learned.post("/models/i/predict", json={"x": exact}).json()
    got = learned.post(PATH.format("i"), content=body, headers=headers)
    assert outputs_of(got)["scores"] == expected["scores"]


@pytest.mark.parametrize(
    ("datatype", "value"), [(kind, value) for kind, values in REFUSED.items() for value in values]
)
def test_values_of_another_datatype_are_refused_by_name(learned, datatype, value):
    good = ACCEPTED.get(datatype, ["a"])[0]
    for model, shape in (("i", [2, 1]), ("n", [2])):
        body = {"inputs": [tensor("x", datatype, [good, value], shape)]}
        got = assert_problem(learned.post(PATH.format(model), json=body), 422, "invalid-tensors")
        assert "'x'" in got["detail"] and datatype in got["detail"]
        assert "value 1" in got["detail"] or "unknown datatype" in got["detail"]


@pytest.mark.parametrize("in_binary", [False, True])
def test_a_default_binary_request_is_answered_in_binary(learned, in_binary):
    inputs = [
        tensor("a", "FP32", [1.5, -2.0], [2]),
        tensor("city", "BYTES", ["R\u00f8st", "Oslo"]),
        tensor("is", "BOOL", [True, False], [2]),
    ]
    rows = [{"a": 1.5, "city": "R\u00f8st", "is": True}, {"a": -2.0, "city": "Oslo", "is": False}]
    expected = learned.post("/models/n/predict", json={"samples": [{"x": x} for x in rows]}).json()
    wanted = {"binary_data_output": True} if in_binary else {}
    body, headers = binary_request(inputs, id="q", parameters=wanted)
    answer = learned.post(PATH.format("n"), content=body, headers=headers)
    assert (HEADER in answer.headers) == in_binary
    assert answer.headers["content-type"] == (
        "application/octet-stream" if in_binary else "application/json"
    )
    assert outputs_of(answer) == {
        name: expected[name] for name in ("scores", "labels", "probabilities")
    }
    assert answer.headers["etag"] == learned.get("/models/n").headers["etag"]


def test_each_output_can_be_binary_or_not(learned):
    options = {
        "inputs": [tensor("x", "FP64", [1.0, 2.0])],
        "parameters": {"binary_data_output": True},
        "outputs": [
            {"name": "labels"},
            {"name": "scores", "parameters": {"binary_data": False}},
            {"name": "probabilities", "parameters": {"binary_data": True}},
        ],
    }
    expected = learned.post("/models/i/predict", json={"x": [[1.0], [2.0]]}).json()
    answer = learned.post(PATH.format("i"), json=options)
    head = json.loads(answer.content[: int(answer.headers[HEADER])])
    assert ["data" in one for one in head["outputs"]] == [False, True, False]
    assert outputs_of(answer) == {
        name: expected[name] for name in ("labels", "scores", "probabilities")
    }


def test_json_and_binary_inputs_can_be_mixed(learned):
    body, headers = binary_request([tensor("a", "INT8", [1, -2], [2])])
    length = int(headers["Inference-Header-Content-Length"])
    head = json.loads(body[:length])
    head["inputs"].insert(0, tensor("city", "BYTES", ["Oslo", "Bod\u00f8"], [2]))
    text = json.dumps(head).encode()
    answer = learned.post(
        PATH.format("n"), content=text + body[length:], headers={HEADER: str(len(text))}
    )
    rows = [{"a": 1, "city": "Oslo"}, {"a": -2, "city": "Bod\u00f8"}]
    expected = learned.post("/models/n/predict", json={"samples": [{"x": x} for x in rows]}).json()
    assert outputs_of(answer)["scores"] == expected["scores"]


def _with(name: str, value, blob: bytes, datatype: str = "FP64", shape=(2,), **more):
    one = {"name": name, "datatype": datatype, "shape": list(shape)}
    one["parameters"] = {} if value is None else {"binary_data_size": value}
    text = json.dumps({"inputs": [one | more]}).encode()
    return text + blob, str(len(text))


TWO = struct.pack("<2d", 1.0, 2.0)
BROKEN = {
    "rest": (*_with("a", 16, TWO + b"x"), "1 byte after the last tensor"),
    "short": (*_with("a", 16, TWO[:-1]), "; 15 bytes left"),
    "negative": (*_with("a", -1, TWO), "binary_data_size -1"),
    "true": (*_with("a", True, TWO), "binary_data_size True"),
    "text": (*_with("a", "16", TWO), "binary_data_size '16'"),
    "other size": (*_with("a", 8, TWO[:8]), "not 16: 2 values of FP64"),
    "both": (*_with("a", 16, TWO, data=[1.0, 2.0]), "both data and binary_data_size"),
    "neither": (*_with("a", None, b""), "'a' has no data"),
    "nan": (*_with("a", 16, struct.pack("<2d", 1.0, float("nan"))), "value 1 is not a finite"),
    "infinite": (*_with("a", 4, np.array([np.inf, 1], "<f2").tobytes(), "FP16"), "value 0 is not"),
    "bool": (*_with("a", 2, b"\x01\x02", "BOOL"), "value 1 is not 0 or 1 (BOOL)"),
    "length": (*_with("a", 4, b"\x09\x00\x00\x00", "BYTES"), "value 0 is longer"),
    "cut length": (*_with("a", 2, b"\x09\x00", "BYTES"), "value 0 is longer"),
    "latin-1": (*_with("a", 5, b"\x01\x00\x00\x00\xff", "BYTES", (1,)), "value 0 is not UTF-8"),
    "fewer texts": (*_with("a", 5, b"\x01\x00\x00\x00a", "BYTES"), "1 value of BYTES"),
    "unknown": (*_with("a", 4, b"\x01\x00\x00\x00", "BF16"), "unknown datatype 'BF16'"),
    "shared": (
        *_with("a", None, b"", parameters={"shared_memory_region": "r"}),
        "'shared_memory_region' is not supported",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_binary_data_that_contradict_their_description_are_refused(learned, case):
    body, length, why = BROKEN[case]
    answer = learned.post(PATH.format("n"), content=body, headers={HEADER: length})
    assert why in assert_problem(answer, 422, "invalid-tensors")["detail"]


@pytest.mark.parametrize("length", ["x", "-1", "1e2", "", "9" * 30, "100000"])
def test_a_length_of_the_json_that_is_none_is_refused(learned, length):
    body, _, _ = BROKEN["rest"]
    answer = learned.post(PATH.format("n"), content=body, headers={HEADER: length})
    assert "Inference-Header" in assert_problem(answer, 400, "malformed-body")["detail"]


def test_binary_data_without_the_length_of_the_json_name_the_header(learned):
    body, length = _with("a", 0, b"", shape=(1,))
    got = assert_problem(learned.post(PATH.format("n"), content=body), 422, "invalid-tensors")
    assert "Inference-Header-Content-Length" in got["detail"]
    body, length, _ = BROKEN["rest"]
    assert_problem(learned.post(PATH.format("n"), content=body), 400, "malformed-body")
    answer = learned.post(PATH.format("n"), content=body, headers={HEADER: str(int(length) - 2)})
    assert_problem(answer, 400, "malformed-body")


def test_outputs_that_are_not_supported_are_refused(learned):
    options = {"inputs": [tensor("x", "FP64", [1.0])]}
    options["outputs"] = [{"name": "scores", "parameters": {"classification": 2}}]
    got = assert_problem(learned.post(PATH.format("i"), json=options), 422, "invalid-tensors")
    assert "'classification' is not supported" in got["detail"]


def test_a_long_binary_request_is_read(learned):
    values = np.linspace(-1.0, 1.0, 20_000)
    body, headers = binary_request(
        [tensor("x", "FP64", values.tolist())], parameters={"binary_data_output": True}
    )
    answer = learned.post(PATH.format("i"), content=body, headers=headers)
    rows = [[value] for value in values.tolist()]
    expected = learned.post("/models/i/predict", json={"x": rows}).json()
    assert outputs_of(answer)["scores"] == expected["scores"]
