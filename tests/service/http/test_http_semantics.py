"""HTTP as clients and proxies expect it: HEAD, text that is not UTF-8, Accept, problem pages."""

import re
import socket
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from dualstream.service.api.problem_pages import problem_types
from dualstream.service.http.access import REQUIRED_SCOPES
from dualstream.service.http.overload import LEARN, PREDICT, kind_of
from dualstream.service.http.request_head import prefers_lines
from tests.docs.documents import DOCUMENTS, ROOT
from tests.service.conftest import SPEC, assert_problem

PLACES = {"model_id": "m", "name": "v", "job": "1", "sample_id": "1"}
PLACES |= {"slug": "invalid-rows", "file": "js/main.js"}
GETS = sorted(path for path, methods in REQUIRED_SCOPES.items() if "GET" in methods)


@pytest.fixture(scope="module")
def learned(shared_client):
    row, model = {"x": {"1": 1}, "y": 1}, shared_client
    assert model.put("/models/m", json=SPEC).status_code == 201
    assert model.post("/models/m/learn", json=row).status_code == 200
    assert model.post("/models/m/versions", json={"name": "v"}).status_code == 201
    return model


FOR_PROGRAMS = re.compile("/v2|/openapi.json|.*/export")


@pytest.mark.parametrize("path", [path for path in GETS if not path.endswith("/events")])
def test_head_answers_as_get_without_the_body(learned, path):
    query = {"/predict": "?model=m&x=1:1", "/models/{model_id}/predict": "?x=1:1"}
    query["/models/{model_id}/export"] = "?format=json"
    url = path.format(**PLACES) + query.get(path, "")
    get, head = learned.get(url), learned.head(url)
    assert head.status_code == get.status_code
    assert head.content == b"" and set(head.headers) == set(get.headers)
    others = {"{job}", "members", "support", "compare", "curves", "intervals"}
    assert get.status_code == 200 or path.split("/")[-1] in others, url
    assert head.headers["content-type"] == get.headers["content-type"]
    if "json" in get.headers["content-type"] and not FOR_PROGRAMS.match(path):
        assert get.content.endswith(b"}\n")  # so that a shell's prompt begins a line


def test_head_on_a_socket_leaves_the_connection_good(shared_server):
    with httpx.Client(base_url=shared_server.url) as client:
        client.delete("/models/head")
        assert client.put("/models/head", json=SPEC).status_code == 201
        for path in ("/livez", "/models/head/events", "/metrics", "/static/js/main.js", "/nowhere"):
            answer = client.head(path)
            assert answer.status_code == (404 if path == "/nowhere" else 200), path
            assert answer.content == b""
            assert client.get("/livez").json() == {"alive": True}
        assert client.head("/livez").headers["content-length"] == "15"
        client.delete("/models/head")


def half_closed(url: str, request: bytes) -> bytes:
    """All that the server sends after the client has sent `request` and closed its side."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), 30) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_client_that_has_closed_its_side_gets_its_responses(shared_server):
    url, row = shared_server.url, b'{"x": {"1": 1}, "y": 1}'
    httpx.delete(f"{url}/models/half")
    posted = b" HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b"
    lengthy = b"[%b]" % b",".join([row] * 20_000)
    requests = {
        b"PUT /models/half" + posted % (2, b"{}"): [b"201"],
        b"POST /models/half/learn" + posted % (len(row), row): [b"200"],
        (b"POST /models/half/learn" + posted % (len(row), row)) * 3: [b"200"] * 3,
        b"POST /models/half/learn" + posted % (len(lengthy), lengthy): [b"200"],
        b"POST /models/half/predict" + posted % (14, b'{"x": {"1":1}}'): [b"200"],
        b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n": [b"200"],
        b"GET /models HTTP/1.0\r\n\r\n": [b"200"],
        # A request without its end is refused, after the responses to those before it.
        b"GET /models HTTP/1.1\r\nhost: a\r\n\r\nPOST /models/half/learn"
        + (posted % (len(row), row))[:-1]: [b"200", b"400"],
        b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\nGET /liv": [b"200", b"400"],
    }
    for request, statuses in requests.items():
        answer = half_closed(url, request)
        assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == statuses, (request[:99], answer[:999])
    assert httpx.get(f"{url}/models/half").json()["samples"] == 20_004
    # An event stream has no end to wait for.
    half_closed(url, b"GET /models/half/events HTTP/1.1\r\nhost: a\r\n\r\n")
    httpx.delete(f"{url}/models/half")


def test_a_slash_at_the_end_is_redirected_relatively(model):
    """So the answer is right under a prefix and TLS of a proxy, which the server does not know."""
    for path, location, end in (
        ("/models/", "../models", "/models"),
        ("/models/?limit=1", "../models?limit=1", "/models?limit=1"),
        ("/models/m/", "../m", "/models/m"),
        ("/models/m/weights/", "../weights", "/models/m/weights"),
        ("/docs/", "../docs", "/docs"),
    ):
        answer = model.get(path, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, location), path
        prefix = "https://host/prefix"
        assert urljoin(prefix + path, location) == prefix + end
    answer = model.post("/models/m/learn/", json={"x": {"1": 1}, "y": 1})
    assert answer.status_code == 200 and answer.json()["seq"] == 1
    for path in ("/nowhere", "/static/none/", "/models/m/nowhere"):
        assert_problem(model.get(path), 404, "not-found")
    (server,) = model.get("/openapi.json").json()["servers"]
    assert urljoin("https://host/prefix/openapi.json", server["url"]) == "https://host/prefix/"


def test_head_of_a_route_without_get_is_refused(model):
    answer = model.head("/models/m/learn")
    assert (answer.status_code, answer.headers["allow"], answer.content) == (405, "POST", b"")
    assert model.get("/models/m").json()["seq"] == 0


@pytest.mark.parametrize(
    "url",
    [
        "/models/m/predict?x.city=O%FF",
        "/models/m/predict?x.%FF=1",
        "/models/m/predict?x=1:1&version=%C3",
        "/predict?model=m&x.city=%ED%A0%80",
        "/models/m/weights?member=%FF",
        "/models?after=%FE",
        "/models/m/events?every_ms=%FF",
    ],
)
def test_a_query_that_is_not_utf8_is_refused(model, url):
    assert "UTF-8" in assert_problem(model.get(url), 422, "invalid-query")["detail"]


def test_a_query_in_plain_utf8_is_that_text(client):
    assert client.put("/models/m", json={"algorithm": "sgd"}).status_code == 201
    row = {"x": {"city": "Ö"}, "y": 1}
    assert client.post("/models/m/learn", json=row).status_code == 200
    coded = client.get("/models/m/predict?x.city=%C3%96").json()
    assert coded["score"] > 0
    other = client.get("/models/m/predict?x.city=%C3%97").json()
    assert other["score"] != coded["score"]


@pytest.mark.parametrize(
    "path", ["/models/O%FF", "/models/m/samples/a%FF", "/models/m/versions/%C3"]
)
@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
def test_a_path_that_is_not_utf8_is_refused(model, method, path):
    assert_problem(model.request(method, path), 422, "invalid-request")


def test_a_path_may_name_the_replacement_character(model):
    answer = model.delete("/models/m/samples/%EF%BF%BD")
    assert_problem(answer, 404, "unknown-sample")


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (b"application/x-ndjson", True),
        (b"Application/X-NDJSON", True),
        (b"application/x-ndjson, application/json", True),
        (b"application/x-ndjson, */*;q=0.1", True),
        (b"application/json;q=0.5, application/x-ndjson;q=0.5", True),
        (b"application/x-ndjson ; q=1.0", True),
        (b"application/x-ndjson;q=0, application/json", False),
        (b"application/x-ndjson;q=0.0", False),
        (b"application/x-ndjson; q=0.000, */*", False),
        (b"application/x-ndjson;q=0.2, application/json", False),
        (b"application/x-ndjson;q=0.2, application/*;q=0.9", False),
        (b"application/x-ndjson;q=0.9, application/json;q=0.1, */*", True),
        (b"application/x-ndjson-other", False),
        (b"application/x-ndjson;q=much", False),
        (b"application/json, */*", False),
        (b"*/*", False),
        (b"", False),
    ],
)
def test_accept_says_whether_lines_are_wanted(model, accept, wanted):
    assert prefers_lines(accept) is wanted
    headers = {"accept": accept.decode()}
    answer = model.post("/models/m/learn", json={"x": {"1": 1}, "y": 1}, headers=headers)
    kind = "application/x-ndjson" if wanted else "application/json"
    assert answer.headers["content-type"] == kind


@pytest.mark.parametrize("model_id", ["a b", "-a", ".a", "é", "a" * 129, "a:b"])
def test_a_name_that_no_model_can_have_is_refused_everywhere(client, model_id):
    url = f"/models/{model_id}"
    answers = [
        client.put(url, json=SPEC),
        client.get(url),
        client.delete(url),
        client.get(f"{url}/metrics"),
        client.post(f"{url}/learn", json={"x": {}, "y": 1}),
        client.get(f"{url}/predict?x="),
        client.get(f"{url}/events"),
        client.get(f"/v2/models/{model_id}"),
        client.get("/predict", params={"model": model_id, "x": ""}),
        client.get("/audit", params={"model": model_id}),
    ]
    for answer in answers:
        detail = assert_problem(answer, 422, "invalid-name")["detail"]
        assert "1 to 128 characters" in detail
    assert client.get("/models").json()["models"] == []


def test_the_type_of_every_problem_is_a_page(client):
    text = DOCUMENTS["docs/reference/errors.md"]
    assert (ROOT / "docs/reference/errors.md").samefile(ROOT / "service/static/errors.md")
    slugs = re.findall(r"^\| `([a-z-]+)` \| [\d4]", text, re.M)
    assert list(problem_types()) == slugs
    index = client.get("/problems").text
    # Each page has the remedy of its own problem.
    remedies = [one.remedy for one in problem_types().values()]
    assert len(set(remedies)) == len(remedies)
    assert "<h2>What to do</h2><p>Read the names of the models at" in (
        client.get("/problems/unknown-model").text
    )
    for slug in slugs:
        page = client.get(f"/problems/{slug}")
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        assert f"<h1>{slug}</h1>" in page.text and "What to do" in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "](" not in page.text and "`" not in page.text
        assert f'href="problems/{slug}"' in index
    refused = assert_problem(client.get("/nowhere"), 404, "not-found")
    assert client.get(refused["type"]).status_code == 200
    assert_problem(client.get("/problems/none-such"), 404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/models/m/learn", LEARN),
        ("POST", "/models/m/labels", LEARN),
        ("POST", "/models/m/predict", PREDICT),
        ("GET", "/models/m/predict", PREDICT),
        ("GET", "/models/m/labels", None),
        ("DELETE", "/models/m/labels", None),
        ("POST", "/models/learn/learn", LEARN),
        ("POST", "/models/models/learn", LEARN),
        ("GET", "/predict", PREDICT),
        ("POST", "/v2/models/m/infer", PREDICT),
        ("POST", "/models/learn", None),
        ("POST", "/models/predict", None),
        ("POST", "/v2/models/infer", None),
        ("POST", "/v2/models/learn", None),
        ("POST", "/models/m/versions/learn", None),
        ("POST", "/models/m/members/predict", None),
        ("POST", "/models/m/members/learn/promote", None),
        ("POST", "/models/m/samples/labels", None),
        ("POST", "/models/learn/metrics", None),
        ("POST", "/models", None),
        ("POST", "/learn", None),
    ],
)
def test_only_learning_and_predicting_are_refused_under_overload(method, path, kind):
    assert kind_of(method, path) == kind


def test_a_page_of_another_origin_can_read_a_refusal_under_overload(serve, monkeypatch):
    client = serve(cors_origins="https://a.example")
    client.put("/models/learn", json=SPEC)
    monkeypatch.setattr(client.app.admission, "refuses", lambda kind, client=None: True)
    monkeypatch.setattr(client.app.admission, "admits", lambda kind, client=None: False)
    origin = {"origin": "https://a.example"}
    answer = client.post("/models/learn/learn", json={"x": {}, "y": 1}, headers=origin)
    assert_problem(answer, 503, "overloaded")
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    assert "retry-after" in answer.headers["access-control-expose-headers"].lower()
    request = origin | {"access-control-request-method": "POST"}
    assert client.options("/models/learn/learn", headers=request).status_code == 200
    assert client.delete("/models/learn").status_code == 204
