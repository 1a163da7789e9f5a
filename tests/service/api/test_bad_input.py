"""What is refused is refused by name, and changes nothing."""

import json

import pytest

from tests.service.conftest import SPEC, assert_problem

GOOD = {"x": {"1": 1, "3": 0.5}, "y": 1}


def state(model) -> tuple:
    got = model.get("/models/m").json()
    return got["seq"], got["samples"], got["rejected"], model.get("/models/m/weights").json()


@pytest.fixture
def client(shared_client):
    yield shared_client
    for model in shared_client.get("/models").json()["models"]:
        assert shared_client.delete(f"/models/{model['id']}").status_code == 204


@pytest.fixture
def untouched(model):
    """The model, which must stand at the end as it stood at the beginning."""
    assert model.post("/models/m/learn", json=GOOD).status_code == 200
    before = state(model)
    yield model
    assert state(model) == before


def test_unknown_model_is_404(client):
    for path in ("", "/metrics", "/weights", "/certificate", "/predict?x=1:1"):
        assert_problem(client.get(f"/models/none{path}"), 404, "unknown-model")
    assert_problem(client.post("/models/none/learn", json=GOOD), 404, "unknown-model")
    assert_problem(client.get("/predict?model=none&x=1:1"), 404, "unknown-model")
    assert_problem(client.delete("/models/none"), 404, "unknown-model")


@pytest.mark.parametrize("model_id", ["-a", "a b", "a" * 129, "ä", "%2e"])
def test_an_id_outside_its_grammar_is_refused(client, model_id):
    assert_problem(client.put(f"/models/{model_id}", json=SPEC), 422, "invalid-name")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rhoo": 1}, "rhoo"),
        ({"rho": 0}, "rho"),
        ({"rho": -1}, "rho"),
        ({"rho": "0.1"}, "rho"),
        ({"rho": True}, "rho"),
        ({"loss": "hings"}, "loss"),
        ({"window": {"kind": "exponential", "beta": 1.5}}, "beta"),
        ({"window": {"kind": "sliding", "length": 0}}, "length"),
        ({"average": {"kappa": 2}}, "kappa"),
        ({"surrogate": "pil1"}, "surrogate"),
        ({"features": {"kind": "indexed", "dim": 0}}, "dim"),
        ({"features": {"kind": "indexed"}}, "dim"),
        ({"task": "regression", "loss": "hinge"}, "loss"),
        ({"window": {"kind": "sliding", "length": 500}, "retain": 100}, "retain"),
    ],
)
def test_bad_spec_is_422_and_names_the_field(client, change, field):
    answer = client.put("/models/bad", json=SPEC | change)
    got = assert_problem(answer, 422, "invalid-spec")
    assert field in got["detail"]
    assert field in got["errors"][0]["pointer"]
    assert client.get("/models/bad").status_code == 404


def test_an_empty_spec_is_the_portfolio(client):
    for body, status in ((b"", 201), (b"{}", 200), (b'{"members": "full"}', 200)):
        answer = client.put("/models/mine", content=body)
        assert answer.status_code == status
        assert answer.json()["spec"]["algorithm"] == "portfolio"


def test_spec_that_is_no_object_is_refused(client):
    assert_problem(client.put("/models/a", content=b"[1]"), 422, "invalid-spec")
    assert_problem(client.put("/models/a", content=b"{"), 400, "malformed-body")


def test_another_spec_for_an_id_is_409(untouched):
    assert_problem(untouched.put("/models/m", json=SPEC | {"rho": 0.5}), 409, "conflict")


@pytest.mark.parametrize(
    ("sample", "pointer", "reason"),
    [
        ({"x": {"1": 2e100}, "y": 1}, "/x/1", "1e100"),
        ({"x": {"1": -2e100}, "y": 1}, "/x/1", "1e100"),
        ({"x": [0, 2e100, 0, 0, 0], "y": 1}, "/x/1", "1e100"),
        ({"x": [1, 2], "y": 1}, "/x", "2 numbers"),
        ({"x": [1, 2, 3, 4, 5, 6], "y": 1}, "/x", "6 numbers"),
        ({"x": {"0": 1}, "y": 1}, "/x/0", "index"),
        ({"x": {"-1": 1}, "y": 1}, "/x/-1", "index"),
        ({"x": {"6": 1}, "y": 1}, "/x/6", "above dim 5"),
        ({"x": {"6": 0}, "y": 1}, "/x/6", "above dim 5"),
        ({"x": {"01": 1}, "y": 1}, "/x/01", "index"),
        ({"x": {"age": 1}, "y": 1}, "/x/age", "index"),
        ({"x": {"1": "5"}, "y": 1}, "/x/1", "'5'"),
        ({"x": {"1": ""}, "y": 1}, "/x/1", "''"),
        ({"x": {"1": None}, "y": 1}, "/x/1", "null"),
        ({"x": [1, None, 0, 0, 0], "y": 1}, "/x/1", "null"),
        ({"x": [True, 0, 0, 0, 0], "y": 1}, "/x/0", "bool"),
        ({"x": "abc", "y": 1}, "/x", "str"),
        ({"y": 1}, "", "x"),
        ({"x": {"1": 1}, "y": None}, "/y", "null"),
        ({"x": {"1": 1}}, "/y", "missing"),
        ({"x": {"1": 1}, "y": 2}, "/y", "2"),
        ({"x": {"1": 1}, "y": 0.5}, "/y", "0.5"),
        ({"x": {"1": 1}, "y": "yes"}, "/y", "'yes'"),
        ({"x": {"1": 1}, "y": ""}, "/y", "''"),
        ({"x": {"1": 1}, "y": [1]}, "/y", "array"),
        ({"x": {"1": 1}, "y": 1e300}, "/y", "1e+300"),
        ({"x": {"1": 1}, "y": 1, "weight": -1}, "/weight", "-1"),
        ({"x": {"1": 1}, "y": 1, "weight": 1e101}, "/weight", "1e+101"),
        ({"x": {"1": 1}, "y": 1, "weight": None}, "/weight", "null"),
        ({"x": {"1": 1}, "y": 1, "label": 1}, "", "label"),
        ({"x": {"1": 1}, "y": 1, "id": ""}, "/id", "1 to 255 bytes"),
        ({"x": {"1": 1}, "y": 1, "id": "a\n"}, "/id", "control characters"),
        ({"x": {"1": 1}, "y": 1, "id": "\x85"}, "/id", "control characters"),
        ({"x": {"1": 1}, "y": 1, "id": "\u00e9" * 128}, "/id", "1 to 255 bytes"),
        ({"x": {"1": 1}, "y": 1, "id": 10**255}, "/id", "1 to 255 bytes"),
        ({"x": {"1": 1}, "y": 1, "id": None}, "/id", "null"),
        ({"x": {"1": 1}, "y": 1, "id": True}, "/id", "bool"),
        ({"x": {"1": 1}, "y": 1, "id": 1.5}, "/id", "float"),
        ({"x": {"1": 1}, "y": 1, "id": ["a"]}, "/id", "array"),
    ],
)
def test_bad_row_is_refused_alone_with_pointer_and_reason(untouched, sample, pointer, reason):
    got = assert_problem(untouched.post("/models/m/learn", json=sample), 422, "invalid-rows")
    assert got["errors"][0]["pointer"] == pointer
    assert reason in got["errors"][0]["reason"]
    many = untouched.post("/models/m/learn?atomic=true", json={"samples": [GOOD, sample]})
    got = assert_problem(many, 422, "invalid-rows")
    assert got["rejected"] == 1
    assert got["errors"][0]["index"] == 1
    assert got["errors"][0]["pointer"] == "/samples/1" + pointer


def test_good_rows_are_learned_beside_bad_ones(model):
    rows = [
        GOOD,
        {"x": {"9": 1}, "y": 1},
        {"x": {"1": None}, "y": 1},
        {"x": [0, 1, 0, 0, 0], "y": 0},
    ]
    answer = model.post("/models/m/learn?scores=true", json={"samples": rows})
    assert answer.status_code == 200
    got = answer.json()
    assert (got["seq"], got["count"], got["learned"], got["rejected"]) == (2, 2, 2, 2)
    assert [error["index"] for error in got["errors"]] == [1, 2]
    assert [score is None for score in got["scores"]] == [False, True, True, False]


def test_columns_refuse_their_bad_rows_alone(model):
    x = [[1, 0, 0, 0, 0], [1, 2], {"2": 1}, {"1": None}]
    got = model.post("/models/m/learn", json={"x": x, "y": [1, 1, 0, 1]}).json()
    assert got["count"] == 2
    assert [(e["index"], e["pointer"]) for e in got["errors"]] == [(1, "/x/1"), (3, "/x/3/1")]
    got = model.post("/models/m/learn", json={"x": x[:3:2], "y": [None, False]}).json()
    assert got["errors"] == [{"index": 0, "pointer": "/y/0", "reason": "the label is null"}]


def test_columns_of_unequal_length_are_refused(untouched):
    answer = untouched.post("/models/m/learn", json={"x": [[1, 0, 0, 0, 0]], "y": [1, 0]})
    assert "x has 1 row but y has 2" in assert_problem(answer, 422, "invalid-body")["detail"]


@pytest.mark.parametrize("y", [1, True, "1", "+1", "true"])
def test_positive_labels(model, y):
    assert model.post("/models/m/learn", json=GOOD | {"y": y}).json()["mistakes"] == 0


@pytest.mark.parametrize("y", [0, -1, False, "0", "-1", "false", 0.0, -0.0])
def test_negative_labels(model, y):
    # The first score is 0, which is the positive class.
    assert model.post("/models/m/learn", json=GOOD | {"y": y}).json()["mistakes"] == 1


def test_only_named_labels_are_accepted_where_they_are_named(client):
    client.put("/models/named", json=SPEC | {"labels": ["ham", "spam"]})
    got = client.post("/models/named/learn", json=GOOD | {"y": "ham"}).json()
    assert got["mistakes"] == 1
    answer = client.post("/models/named/learn", json=GOOD | {"y": 1})
    assert "'ham' or 'spam'" in assert_problem(answer, 422, "invalid-rows")["detail"]
    assert client.get("/models/named/predict?x=1:1").json()["label"] == "ham"
    answer = client.post(
        "/models/named/learn",
        content="spam 1:1\n1 2:1\n",
        headers={"content-type": "text/x-libsvm"},
    )
    assert answer.json()["count"] == 1 and answer.json()["errors"][0]["line"] == 2


@pytest.mark.parametrize(
    "body",
    [
        b'{"x": {"1": NaN}, "y": 1}',
        b'{"x": [1, Infinity], "y": 1}',
        b'{"x"',
        b"",
        b"\xff",
        b"{}}",
        b"age,y\n39,1\n",
    ],
)
def test_what_is_not_json_is_400_with_the_byte(untouched, body):
    answer = untouched.post(
        "/models/m/learn", content=body, headers={"content-type": "application/json"}
    )
    got = assert_problem(answer, 400, "malformed-body")
    assert 0 <= got["byte"] <= len(body)
    assert ("another format in Content-Type" in got["detail"]) == (body[:1] in (b"a", b"\xff"))


def test_what_is_nested_too_deeply_is_400(untouched):
    for body in (b"[" * 9999 + b"]" * 9999, b'{"x": {"1": ' + b"[" * 9999 + b"]" * 9999 + b"}}"):
        got = assert_problem(untouched.post("/models/m/learn", content=body), 400, "malformed-body")
        assert "deeply" in got["detail"]


def test_bad_json_after_a_bad_row_is_still_400(untouched):
    body = b'{"samples": [{"x": {"9": null}, "y": 1}, {"x": NaN}]}'
    assert_problem(untouched.post("/models/m/learn", content=body), 400, "malformed-body")


@pytest.mark.parametrize("body", [{}, {"samples": []}, {"x": [], "y": []}, [], 3])
def test_body_without_rows_is_422(untouched, body):
    answer = untouched.post("/models/m/learn", json=body)
    assert answer.status_code == 422
    assert_problem(answer, 422, answer.json()["type"].rpartition("/")[2])


def test_name_twice_in_an_object_is_refused(untouched):
    body = b'{"x": {"1": 1, "1": 2}, "y": 1}'
    got = assert_problem(untouched.post("/models/m/learn", content=body), 422, "invalid-rows")
    assert "duplicated" in got["detail"]
    body = b'{"samples": [{"x": {"1": 1}, "y": 1, "y": 0}]}'
    got = assert_problem(untouched.post("/models/m/learn", content=body), 422, "invalid-rows")
    assert "'y'" in got["detail"]


def learn_libsvm(client, text: str):
    return client.post(
        "/models/m/learn", content=text, headers={"content-type": "text/x-libsvm; charset=utf-8"}
    )


@pytest.mark.parametrize(
    "line",
    ["+1 1", "+1 0:1", "+1 6:1", "1 1:nan", "1 1:inf", "1:1 2:1", "2 1:1", "x 1:1", "1 1:1 1:2"],
)
def test_libsvm_line_that_does_not_parse_is_named(untouched, line):
    got = assert_problem(learn_libsvm(untouched, f"\n{line}\n"), 422, "invalid-rows")
    assert got["errors"][0]["line"] == 2
    assert got["errors"][0]["index"] == 0


def test_libsvm_learns_its_good_lines(model):
    got = learn_libsvm(model, "+1 1:1\n\n-1 9:1\nfalse 2:1 # a comment\r\n7 1:1\n").json()
    assert (got["count"], got["rejected"]) == (2, 2)
    assert [(e["index"], e["line"]) for e in got["errors"]] == [(1, 3), (3, 5)]


def test_body_over_the_limit_is_413(serve):
    client = serve(max_body_bytes=1000)
    client.put("/models/m", json=SPEC)
    body = json.dumps({"samples": [GOOD] * 100}).encode()
    got = assert_problem(client.post("/models/m/learn", content=body), 413, "body-too-large")
    assert "split it into smaller requests" in got["detail"]

    def in_chunks():
        yield body[:900]
        yield body[900:]

    assert_problem(client.post("/models/m/learn", content=in_chunks()), 413, "body-too-large")
    assert client.get("/models/m").json()["seq"] == 0


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"content-type": "text/html"}, "'text/html'"),
        ({"content-type": "multipart/form-data; boundary=x"}, "'multipart/form-data'"),
        ({"content-type": "text/csv; header=absent"}, "header=absent"),
        ({"content-type": "application/json; boundary=x"}, "'boundary'"),
        ({"content-type": "application/json; charset=latin-1"}, "latin-1"),
        ({"content-type": "application/json", "content-encoding": "br"}, "'br'"),
    ],
)
def test_unsupported_format_is_415(untouched, headers, named):
    answer = untouched.post("/models/m/learn", content=b"{}", headers=headers)
    assert named in assert_problem(answer, 415, "unsupported-media-type")["detail"]


@pytest.mark.parametrize("key", ["", "a" * 256, "tab\there"])
def test_key_outside_its_grammar_is_422(untouched, key):
    answer = untouched.post("/models/m/learn", json=GOOD, headers={"idempotency-key": key})
    assert_problem(answer, 422, "invalid-idempotency-key")


REPEATED = {
    "Authorization": ("Bearer a", "Bearer b"),
    "Content-Encoding": ("gzip", "identity"),
    "Content-Type": ("text/csv", "application/json"),
    "Dualstream-Source": ("s; from=0; to=0", "s; from=1; to=1"),
    "Idempotency-Key": ("a", "b"),
    "Inference-Header-Content-Length": ("1", "2"),
    "Last-Event-ID": ('"0-00000000"', '"1-00000000"'),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_header_of_one_value_is_not_repeated(model, name):
    first, second = REPEATED[name]
    for values in ((first, second), (second, first), (first, first), (first, "")):
        twice = [(name.lower(), values[0]), ("accept", "*/*"), (name, values[1])]
        for path in ("learn", "predict", "labels", "rollback", "members"):
            answer = model.post(f"/models/m/{path}", json=GOOD, headers=twice)
            detail = assert_problem(answer, 400, "malformed-request")["detail"]
            assert detail.lower() == f"the header {name.lower()} is repeated; send it once"
    assert model.get("/models/m").json()["seq"] == 0
    lists = [(header, "x") for header in ("accept", "if-none-match", "via", "x-any")] * 2
    assert model.get("/models/m", headers=lists).status_code == 200


def test_same_key_with_another_payload_is_422(model):
    first = model.post("/models/m/learn", json=GOOD, headers={"idempotency-key": "k"})
    assert first.status_code == 200
    other = model.post("/models/m/learn", json=GOOD | {"y": 0}, headers={"idempotency-key": "k"})
    assert_problem(other, 422, "idempotency-key-reused")
    assert model.get("/models/m").json()["seq"] == 1


@pytest.mark.parametrize(
    "query",
    [
        "?x.age=3",
        "?x.1=1&x=1:1",
        "?x.1=a",
        "?x.1=1&x.1=2",
        "?x=1",
        "?x=1:1,1:2",
        "?x=9:1",
        "?x=1:a",
        "?x=1:nan",
        "?x=1:1_0",
        "",
        "?y=1",
    ],
)
def test_bad_predict_query_is_422(untouched, query):
    answer = untouched.get(f"/models/m/predict{query}")
    assert answer.status_code == 422
    got = answer.json()
    assert got["detail"]


@pytest.mark.parametrize("query", ["?atomic=yes", "?min_seq=3", "?scores="])
def test_bad_learn_query_is_422(untouched, query):
    assert_problem(untouched.post(f"/models/m/learn{query}", json=GOOD), 422, "invalid-query")


def test_wrong_method_and_unknown_path_have_the_one_shape(untouched):
    answer = untouched.get("/models/m/learn")
    assert_problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "POST"
    assert_problem(untouched.post("/models/m/metrics"), 405, "method-not-allowed")
    assert_problem(untouched.get("/nowhere"), 404, "not-found")
    assert_problem(untouched.get("/models/m/weights?top=0"), 422, "invalid-request")


def test_all_zero_row_counts_and_makes_no_nan(model):
    for x in ({}, [0, 0, 0, 0, 0], {"1": 0}, {"2": -0.0}, {"1": False}):
        got = model.post("/models/m/learn", json={"x": x, "y": 1}).json()
        assert got["learned"] == 1
    assert model.get("/models/m").json()["seq"] == 5
    weights = model.get("/models/m/weights").json()
    assert weights["weights"] == []
    assert model.get("/models/m/predict?x=").status_code == 200


def test_row_whose_step_would_not_be_finite_is_journalled_and_rejected(client):
    spec = SPEC | {"task": "regression", "loss": "squared", "rho": 1e-12, "intercept": False}
    client.put("/models/m", json=spec)
    client.post("/models/m/learn", json={"x": {"1": 1}, "y": 1e100})
    before = client.get("/models/m/weights").json()
    # The score is 1e200, and its square is beyond every float.
    rows = {"samples": [{"x": {"1": 1e100}, "y": 0}, {"x": {"2": 0}, "y": 0, "weight": 0}]}
    got = client.post("/models/m/learn", json=rows).json()
    assert (got["seq"], got["count"], got["learned"], got["rejected"]) == (3, 2, 1, 1)
    assert got["errors"][0]["index"] == 0 and "finite" in got["errors"][0]["reason"]
    assert got["loss"] == 0
    assert client.get("/models/m/weights").json() == before | {"seq": 3}
    assert client.get("/models/m").json()["rejected"] == 1
    assert client.get("/models/m/metrics").json()["rows"] == 2


def test_certificate_of_absurd_weights_is_null_and_not_an_error(client):
    spec = SPEC | {"task": "regression", "loss": "squared", "rho": 1e-12, "intercept": False}
    client.put("/models/m", json=spec)
    for x in (1, 1e-60):
        client.post("/models/m/learn", json={"x": {"1": x}, "y": 1e100})
    for path in ("", "/certificate", "/weights", "/metrics", "/predict?x=1:1e100"):
        assert client.get(f"/models/m{path}").status_code == 200, path
    assert client.get("/metrics").status_code == 200


def test_bodies_that_the_framework_reads_are_refused_as_all_others(serve):
    client = serve(max_body_bytes=1000)
    assert client.put("/models/m", json=SPEC).status_code == 201
    as_json = {"content-type": "application/json"}
    for route in ("rollback", "versions", "refit"):
        request = f"/models/m/{route}"
        for body in (b'{"seq":', b"[" * 900, b"\xff\xfe"):
            assert_problem(
                client.post(request, content=body, headers=as_json), 400, "malformed-body"
            )
        of_text = client.post(request, content=b"seq=0", headers={"content-type": "text/plain"})
        assert_problem(of_text, 415, "unsupported-media-type")
        for body in (b" " * 1001, iter([b" " * 500, b" " * 501])):
            assert_problem(
                client.post(request, content=body, headers=as_json), 413, "body-too-large"
            )


def test_allow_names_every_method_of_the_route(client):
    for path, allow in (
        ("/livez", "GET, HEAD"),
        ("/models/m", "DELETE, GET, HEAD, PUT"),
        ("/models/m/predict", "GET, HEAD, POST"),
        ("/models/m/versions", "GET, HEAD, POST"),
        ("/models/m/versions/v", "DELETE, GET, HEAD"),
        ("/static/app.js", "GET, HEAD"),
    ):
        answer = client.request("PATCH", path)
        assert_problem(answer, 405, "method-not-allowed")
        assert answer.headers["allow"] == allow


def test_a_parameter_that_a_route_does_not_have_is_refused(model):
    for method, path, named in (
        ("GET", "/models?limt=2", "limt"),
        ("GET", "/models/m?min_seq=0", "min_seq"),
        ("GET", "/models/m/weights?top=3&topp=3", "topp"),
        ("GET", "/models/m/certificate?refrence=true", "refrence"),
        ("GET", "/models/m/metrics?verbose", "verbose"),
        ("GET", "/models/m/weights?top=3&top=4", "top is repeated"),
        ("GET", "/audit?modle=m", "modle"),
        ("POST", "/specs/resolve?spec=1", "spec"),
        ("POST", "/models/m/labels?atomic=true", "atomic"),
        ("POST", "/models/m/versions?name=v", "name"),
        ("DELETE", "/models/m?force=true", "force"),
        ("PUT", "/models/n?force=true", "force"),
    ):
        got = assert_problem(model.request(method, path), 422, "invalid-query")
        assert named in got["detail"], path
    assert "known: top, member" in model.get("/models/m/weights?topp=3").json()["detail"]
    assert model.get("/models/m/predict?site=news").json()["detail"].endswith(", x.NAME")
    assert "GET /models lists" in model.get("/models/nobody/weights").json()["detail"]
    assert model.get("/models/m").status_code == 200
    assert model.get("/models/n").status_code == 404


def test_probes_and_other_protocols_may_add_to_a_query(model):
    for path in ("/livez?a=1", "/readyz?a=1", "/metrics?a=1", "/v2?a=1", "/v2/models/m?a=1", "/?a"):
        assert model.get(path).status_code == 200, path
    document = model.get("/openapi.json").json()["paths"]
    assert "422" in document["/models/{model_id}"]["delete"]["responses"]
    assert "422" not in document["/metrics"]["get"]["responses"]
