"""Keys: every route asks for its scope, other models are as if they were not there, and no key is
shown or written anywhere."""

import logging
import re
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.routing import Mount
from typer.testing import CliRunner

from dualstream.client import BadInput, Client, Refused
from dualstream.client.calls import with_api_key
from dualstream.service import cli
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.http.access import REQUIRED_SCOPES, requirement_of
from dualstream.service.http.api_keys import (
    BadKeys,
    KeyRing,
    KeyScope,
    digest_of,
    new_key,
    parse_keys,
)
from dualstream.service.server.serve import make_server
from dualstream.service.settings import Settings, check_binding
from tests.docs.documents import ROOT
from tests.service.conftest import SPEC, assert_problem

PLACES = {"model_id": "ads-1", "name": "a", "job": "1", "sample_id": "s/1"}
KEYS = {
    "predict": new_key("reader", "predict"),
    "learn": new_key("producer", "learn"),
    "admin": new_key("owner", "admin"),
    "ads": new_key("ads-owner", "admin", ("ads-*", "spam")),
}
LINES = ";".join(key.line() for _, key in KEYS.values())


def by(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name][0]}"}


@pytest.fixture
def keyed(serve):
    return serve(keys=LINES)


def operations(document: dict) -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, of in document["paths"].items() for method in of]


def routes_of(router):
    """Those that are included, too."""
    for route in router.routes:
        included = getattr(route, "original_router", None)
        yield from [route] if included is None else routes_of(included)


def test_every_route_has_a_scope_and_nothing_else_has(keyed):
    served = set(operations(keyed.get("/openapi.json").json()))
    for route in routes_of(keyed.app._fastapi):
        path = f"{route.path}/{{file}}" if isinstance(route, Mount) else route.path
        served |= {
            (method, path.replace(":path", ""))
            for method in getattr(route, "methods", None) or {"GET"}
            if method != "HEAD"
        }
    named = {(method, path) for path, methods in REQUIRED_SCOPES.items() for method in methods}
    assert named == served
    for method, path in named:
        filled = path.format(**PLACES, file="a.js", slug="refused")
        assert requirement_of(method, filled)[:2] == (path, REQUIRED_SCOPES[path][method])


def test_every_route_refuses_missing_wrong_and_insufficient_access_keys(keyed):
    wrong = {"authorization": f"Bearer {new_key('x', 'admin')[0]}"}
    document = keyed.get("/openapi.json").json()
    for method, path in operations(document):
        filled = path.format(**PLACES)
        needed = REQUIRED_SCOPES[path][method]
        security = document["paths"][path][method.lower()]["security"]
        if needed is KeyScope.NOTHING:
            assert security == []
            assert keyed.request(method, filled).status_code == 200
            continue
        assert security == [{"key": [needed.word]}]
        answers = [
            keyed.request(method, filled, headers=[*headers, ("x-request-id", "r")])
            for headers in ([], wrong.items())
        ]
        for answer in answers:
            assert_problem(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert len({answer.content for answer in answers}) == 1
        for name in ("predict", "learn"):
            answer = keyed.request(method, filled, headers=by(name))
            if KEYS[name][1].scope < needed:
                assert needed.word in assert_problem(answer, 403, "forbidden")["detail"]
            else:
                assert answer.status_code not in (401, 403), (method, path)
    for method, path in (("GET", "/nowhere"), ("PATCH", "/models/m"), ("GET", "/models/m/learn/")):
        assert keyed.request(method, path).status_code == 401
        assert keyed.request(method, path, headers=by("learn")).status_code == 403
        assert keyed.request(method, path, headers=by("admin")).status_code in (404, 405)
    assert_problem(keyed.get("/readyz?verbose"), 401, "unauthorized")
    assert_problem(keyed.get("/readyz?%76erbose=1"), 401, "unauthorized")
    assert keyed.get("/readyz?verbose", headers=by("predict")).json()["models"] == 0
    assert keyed.get("/").status_code == 200


def test_scopes_hold_on_the_hot_path(keyed):
    assert keyed.put("/models/ads-1", json=SPEC, headers=by("admin")).status_code == 201
    sample, row = {"x": {"1": 1}, "y": 1}, {"x": {"1": 1}}
    learn, predict = "/models/ads-1/learn", "/models/ads-1/predict"
    assert_problem(keyed.post(learn, json=sample, headers=by("predict")), 403, "forbidden")
    assert keyed.post(learn, json=sample, headers=by("learn")).json()["learned"] == 1
    for name in ("predict", "learn", "ads"):
        assert keyed.post(predict, json=row, headers=by(name)).json()["seq"] == 1
    # A row that waits may be given a label by time alone: that is to learn.
    waiting = {"samples": [{"x": {"1": 1}, "id": "a"}]}
    for query in ("?remember=true&default_label=1", "?min_seq=0&r%65member=1"):
        answer = keyed.post(predict + query, json=waiting, headers=by("predict"))
        assert_problem(answer, 403, "forbidden")
        assert keyed.post(predict + query, json=waiting, headers=by("learn")).status_code == 200
    exposed = keyed.get("/metrics", headers=by("predict")).text
    assert re.search(r'_count\{method="POST",route="learn",status="403"\} 1', exposed)


def test_a_model_of_others_is_as_one_that_is_not_there(keyed):
    for model in ("ads-1", "ads-2", "news-1", "spam"):
        assert keyed.put(f"/models/{model}", json=SPEC, headers=by("admin")).status_code == 201
    for method, path in operations(keyed.get("/openapi.json").json()):
        if "{model_id}" not in path:
            continue
        got = {}
        for model in ("news-1", "news-2"):
            filled = path.format(**{**PLACES, "model_id": model})
            answer = keyed.request(method, filled, headers=by("ads") | {"x-request-id": "r"})
            slug = "forbidden" if (method, path) in CHANGED_BY_ID else "unknown-model"
            assert_problem(answer, 403 if slug == "forbidden" else 404, slug)
            got[model] = re.sub(r"\d(?=['\"/])", "", answer.text), dict(answer.headers)
        assert got["news-1"] == got["news-2"], (method, path)
    queried = [
        keyed.get(f"/predict?{query}&x=1:1", headers=by("ads"))
        for query in ("model=news-1", "model=news-2", "model=ads-1&model=news-1")
    ]
    assert [answer.status_code for answer in queried] == [404] * 3
    assert keyed.get("/predict?model=ads-1&x=1:1", headers=by("ads")).status_code == 200
    # Those it may see are listed, page by page, and shown of; the others are nowhere.
    seen, after = [], ""
    while after is not None:
        page = keyed.get(f"/models?limit=2&after={after}", headers=by("ads")).json()
        seen.append([model["id"] for model in page["models"]])
        after = page["next"]
    assert seen == [["ads-1", "ads-2"], ["spam"]]
    for path in ("/metrics", "/readyz?verbose"):
        assert "news" in keyed.get("/metrics", headers=by("predict")).text
        assert "news" not in keyed.get(path, headers=by("ads")).text
    assert 'dualstream_seq{model="ads-1"}' in keyed.get("/metrics", headers=by("ads")).text
    assert keyed.delete("/models/spam", headers=by("ads")).status_code == 204
    assert keyed.get("/models/news-1", headers=by("admin")).json()["seq"] == 0


def test_a_file_that_every_user_may_write_is_warned_about(tmp_path, caplog):
    file = tmp_path / "keys"
    file.write_text(new_key("producer", "learn")[1].line())
    for mode, is_warned in ((0o660, False), (0o644, False), (0o666, True)):
        file.chmod(mode)
        caplog.clear()
        KeyRing(None, file)
        assert (f"chmod o-w {file}" in caplog.text) == is_warned


CHANGED_BY_ID = {("PUT", "/models/{model_id}"), ("DELETE", "/models/{model_id}")}


def test_keys_are_followed_as_their_file_changes(tmp_path, caplog):
    file = tmp_path / "keys"
    old, new = new_key("producer", "learn"), new_key("producer", "learn", ("a*",))
    file.write_text(f"# who may do what\n\n{old[1].line()}  # the old one\n")
    ring = KeyRing(None, file)
    assert ring.find(old[0].encode()) == old[1]
    assert ring.find(new[0].encode()) is None
    file.write_text(f"{old[1].line()}\n{new[1].line()}\n")
    ring.reload_if_changed()
    assert ring.find(old[0].encode()) == old[1] and ring.find(new[0].encode()) == new[1]
    # A key where its digest should be is not shown to who reads the log.
    file.write_text(f"{old[1].line()}\nproducer {new[0]} learn\n")
    with caplog.at_level(logging.ERROR):
        ring.reload_if_changed()
    assert "line 2" in caplog.text and new[0] not in caplog.text
    file.unlink()
    ring.reload_if_changed()
    assert ring.find(new[0].encode()) == new[1]
    file.write_text(new[1].line())
    ring.reload_if_changed()
    assert ring.find(old[0].encode()) is None and ring.find(new[0].encode()) == new[1]
    file.write_text("")
    ring.reload_if_changed()
    assert ring.find(new[0].encode()) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a learn", "expected NAME"),
        ("a sha256:12 learn", "the digest must be"),
        (f"a sha256:{'0' * 64} write", "predict, learn, admin"),
        (f"a sha256:{'0' * 64} learn a/b", "a model pattern"),
        (f"a! sha256:{'0' * 64} learn", "a name"),
        (f"a sha256:{'0' * 64} learn; b sha256:{'0' * 64} admin", "the same digest"),
        ("", "no key in DUALSTREAM_KEYS"),
    ],
)
def test_lines_that_are_no_keys_are_refused(line, reason):
    with pytest.raises(BadKeys, match=reason):
        KeyRing(line, None)


def test_the_command_makes_a_key_and_its_line():
    made = [
        msgspec.json.decode(
            CliRunner()
            .invoke(
                cli.app, ["new-key", "ads", "--scope", "learn", "--models", "ads-*,b", "--json"]
            )
            .stdout
        )
        for _ in range(2)
    ]
    assert made[0]["key"] != made[1]["key"] and len(made[0]["key"]) > 40
    (key,) = parse_keys(made[0]["line"], "here")
    assert key.digest == digest_of(made[0]["key"].encode())
    assert (key.scope, key.patterns) == (KeyScope.LEARN, ("ads-*", "b"))
    assert made[0]["key"] not in made[0]["line"] + repr(key)
    refused = CliRunner().invoke(cli.app, ["new-key", "ads", "--scope", "write"])
    assert refused.exit_code == 2 and "predict, learn, admin" in refused.output


def test_with_keys_any_address_may_be_bound():
    check_binding(Settings(host="0.0.0.0", keys=LINES))
    check_binding(Settings(host="0.0.0.0", keys_file="keys"))


def test_other_origins_are_let_in_where_they_are_named(serve, tmp_path):
    asks = {"origin": "https://a.example", "access-control-request-method": "POST"}
    asks["access-control-request-headers"] = "authorization,content-type,idempotency-key"
    closed = serve(store=f"sqlite:///{tmp_path / 'closed.db'}")
    got = closed.options("/models/m/learn", headers=asks)
    assert got.status_code == 405
    assert not any(name.startswith("access-control") for name in got.headers)
    opened = serve(keys=LINES, cors_origins="https://a.example, https://b.example")
    got = opened.options("/models/m/learn", headers=asks)
    assert got.status_code == 200
    assert got.headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-credentials" not in got.headers
    more = {"access-control-request-headers": "baggage, sentry-trace, traceparent, content-type"}
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        one = asks | more | {"access-control-request-method": method}
        got = opened.options("/models/m/learn", headers=one)
        assert got.status_code == 200, got.text
    got = opened.options("/models/m/learn", headers=asks | {"origin": "https://c.example"})
    assert "access-control-allow-origin" not in got.headers
    refused = opened.get("/models", headers={"origin": "https://b.example"})
    assert refused.status_code == 401  # a page of that origin may read why
    assert refused.headers["access-control-allow-origin"] == "https://b.example"


def test_over_tls_no_key_is_written_or_shown_anywhere(tmp_path, monkeypatch):
    certificate, private = tmp_path / "tls.crt", tmp_path / "tls.key"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]
        + ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", str(private), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    (admin, line), (wrong, _), (later, its_line) = (new_key("owner", "admin") for _ in range(3))
    keys, store = tmp_path / "keys", tmp_path / "tls.db"
    keys.write_text(line.line())
    flags = ["--keys-file", str(keys), "--ssl-certfile", str(certificate)]
    flags += ["--ssl-keyfile", str(private), "--host", "127.0.0.1"]
    trust = ssl.create_default_context(cafile=certificate)
    got = []
    with (tmp_path / "stderr").open("w") as stderr:
        with ServerProcess(f"sqlite:///{store}", flags, stderr=stderr) as server:
            assert server.url.startswith("https://")
            assert healthy_in_its_image(server.url, certificate) == ""

            def http(secret: str) -> httpx.Client:
                headers = {"authorization": f"Bearer {secret}", "x-forwarded-proto": "ftp"}
                return httpx.Client(base_url=server.url, verify=trust, headers=headers)

            with http(admin) as by_admin, http(wrong) as by_other, http(later) as by_new:
                with Client(http=by_admin) as client:
                    client.create("m", SPEC)
                    assert client.learn("m", [1, 0, 0, 0, 0], 1).learned == 1
                with pytest.raises(Refused) as refused, Client(http=by_other) as client:
                    client.learn("m", [1, 0, 0, 0, 0], 1)
                got.append(repr(refused.value) + str(refused.value.problem))
                # A command finds the certificate as OpenSSL's programs do, its key by two ways.
                monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
                monkeypatch.setenv("DUALSTREAM_API_KEY", wrong)
                command = ["models", "--json", "--url", server.url]
                done = CliRunner().invoke(cli.app, [*command, "--api-key", admin])
                assert done.exit_code == 0 and '"id":"m"' in done.stdout
                done = CliRunner().invoke(cli.app, command)
                assert (
                    done.exit_code == 3 and "is required; give it with --api-key or" in done.output
                )
                got.append(done.output)
                for client in (http(admin), http(wrong)):
                    with client:
                        got += [
                            client.get(path).text
                            for path in (
                                "/metrics",
                                "/models",
                                "/readyz?verbose",
                                "/x",
                                f"/{wrong}",
                            )
                            if path != f"/{wrong}"
                        ]
                        got.append(client.post("/models/m/learn", content=b"{").text)
                        # Nobody is believed who says that another came by other ways.
                        where = client.get("/models/").headers.get("location", "../models")
                        assert where == "../models"
                keys.write_text(line.line() + "\nbroken\n")
                keys.write_text(its_line.line())
                deadline = time.monotonic() + 60
                while by_new.get("/models").status_code == 401:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            with http(admin) as replaced:
                assert replaced.get("/models").status_code == 401
        got += server.said
    assert server.url in healthy_in_its_image(server.url, certificate)
    written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"reloaded: 1 keys are valid" in written
    for secret in (admin, wrong, later):
        assert secret.encode() not in written
        assert not any(secret in text for text in got)


def healthy_in_its_image(url: str, certificate: Path) -> str:
    """What the image's health check complains of, whose server has these settings."""
    options = {"DUALSTREAM_HOST": "0.0.0.0", "DUALSTREAM_PORT": url.rpartition(":")[2]}
    options |= {"DUALSTREAM_SSL_CERTFILE": str(certificate), "https_proxy": "http://127.0.0.1:9"}
    check = [sys.executable, str(ROOT / "deploy" / "healthcheck.py")]
    done = subprocess.run(check, env=options, capture_output=True, text=True)
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr


def test_clients_show_the_key_that_they_are_given_else_the_environments(monkeypatch):
    monkeypatch.setenv("DUALSTREAM_API_KEY", "ds_environment")
    assert with_api_key(None, None) == {"authorization": "Bearer ds_environment"}
    assert with_api_key({"x": "y"}, "ds_given") == {"authorization": "Bearer ds_given", "x": "y"}
    assert with_api_key({"Authorization": "Basic x"}, None) == {"Authorization": "Basic x"}
    assert with_api_key(None, "") == {}
    for key in ("ds_a\r\nx-other: 1", "ds_ü", "ds a"):
        with pytest.raises(BadInput) as wrong:
            Client(api_key=key)
        assert key not in str(wrong.value)


def test_tls_that_cannot_be_served_is_refused_at_start(tmp_path):
    with pytest.raises(ValueError, match=r"TLS cannot be served with .*none\.crt"):
        make_server(Settings(ssl_certfile=tmp_path / "none.crt"))
    with pytest.raises(ValueError, match="SSL_KEYFILE is set without"):
        make_server(Settings(ssl_keyfile=tmp_path / "none.key"))
    store = f"sqlite:///{tmp_path / 'a.db'}"
    assert not make_server(Settings(store=store)).config.proxy_headers
    later = make_server(Settings(store=store, forwarded_allow_ips="10.0.0.1")).config
    assert later.proxy_headers and later.forwarded_allow_ips == "10.0.0.1"
