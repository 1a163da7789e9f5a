"""The client: any kind of rows arrives to the bit, each once, whatever is lost on the way."""

import asyncio
import dataclasses
import inspect
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from unittest.mock import create_autospec
from uuid import UUID

import httpx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from msgspec import structs

from dualstream.client import (
    AsyncClient,
    BadInput,
    Client,
    LearnedStream,
    Refused,
    Source,
    Unreachable,
    responses as answers,
)
from dualstream.client.row_values import sample_line
from dualstream.client.rows import bodies_of
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.journal import open_journal
from dualstream.wire import changes, responses, schemas
from tests.history import check_history

SPEC = {"algorithm": "sgd", "features": {"kind": "indexed", "dim": 4}}
NAMED = {"algorithm": "sgd", "features": {"kind": "hashed", "bits": 8}}
RNG = np.random.default_rng(5)
X = np.where(RNG.random((40, 4)) < 0.5, RNG.normal(size=(40, 4)), 0.0)
Y = (RNG.random(40) < 0.5).astype(int)
WEIGHT = RNG.random(40)
NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    return shared_server


@pytest.fixture
def client(server) -> Iterator[Client]:
    with Client(server.url) as one:
        yield one


def learned_by(client: Client, model: str, spec: dict, learn) -> str:
    """The digest of the state after rows were learned in some way."""
    client.create(model, spec)
    got = learn(model)
    assert (got.learned, got.rejected, got.seq) == (40, 0, 40)
    digest = client.get(model, digest=True).state_digest
    client.delete(model)
    assert digest is not None
    return digest


def test_every_kind_of_rows_arrives_to_the_bit(client, server):
    async def awaited(model: str):
        async def arriving():
            for x, y, weight in zip(X.tolist(), Y.tolist(), WEIGHT.tolist(), strict=True):
                yield {"x": x, "y": y, "weight": weight}

        async with AsyncClient(server.url) as asynchronous:
            return await asynchronous.learn_iter(model, arriving(), rows_per_request=7)

    objects = [{str(k + 1): v for k, v in enumerate(row)} for row in X.tolist()]
    samples = zip(objects, Y.tolist(), WEIGHT.tolist(), strict=True)
    ways = {
        "lists": lambda m: client.learn(m, X.tolist(), Y.tolist(), weight=WEIGHT.tolist()),
        "array": lambda m: client.learn(m, X, Y, weight=WEIGHT, rows_per_request=3),
        "frame": lambda m: client.learn(m, pd.DataFrame(X), Y, weight=pd.Series(WEIGHT)),
        "sparse": lambda m: client.learn(m, scipy.sparse.csc_matrix(X), Y, weight=WEIGHT),
        "objects": lambda m: client.learn(m, objects, pd.Series(Y), weight=WEIGHT),
        "stream": lambda m: client.learn_iter(
            m, ({"x": x, "y": y, "weight": w} for x, y, w in samples)
        ),
        "awaited": lambda m: asyncio.run(awaited(m)),
    }
    digests = {name: learned_by(client, f"w-{name}", SPEC, way) for name, way in ways.items()}
    assert len(set(digests.values())) == 1, digests


def test_names_of_columns_are_names_of_features(client):
    frame = pd.DataFrame(X, columns=NAMES).assign(label=Y, share=WEIGHT)
    named = [dict(zip(NAMES, row, strict=True)) for row in X.tolist()]
    ways = {
        "frame": lambda m: client.learn(m, frame, "label", weight="share"),
        "array": lambda m: client.learn(m, X, Y, weight=WEIGHT, names=NAMES),
        "objects": lambda m: client.learn(m, named, Y, weight=WEIGHT),
    }
    digests = {name: learned_by(client, f"n-{name}", NAMED, way) for name, way in ways.items()}
    assert len(set(digests.values())) == 1, digests


def test_texts_and_missing_values_of_a_frame(client):
    client.create("frame", NAMED)
    frame = pd.DataFrame(
        {
            "city": pd.Categorical(["Oslo", "Rome", "Oslo"]),
            "member": [True, False, True],
            "age": pd.array([39, pd.NA, 51], dtype="Int64"),
        }
    )
    got = client.learn("frame", frame, [1, 0, 1], ids=["a", "b", "c"])
    assert (got.learned, got.rejected) == (2, 1)
    assert got.errors[0]["index"] == 1 and got.errors[0]["pointer"] == "/x/age"
    again = client.learn("frame", frame, [1, 0, 1], ids=["a", "b", "c"])
    assert again.duplicate and again.duplicate_rows == 2
    client.delete("frame")


class Lossy(httpx.BaseTransport):
    """A network that loses every other answer, and answers others with a gateway's 502."""

    def __init__(self) -> None:
        self._real = httpx.HTTPTransport()
        self.sent = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent += 1
        if self.sent % 4 == 0:
            return httpx.Response(502)
        answer = self._real.handle_request(request)
        if self.sent % 2:
            answer.read()
            answer.close()
            raise httpx.ReadError("the connection was lost")
        return answer

    def close(self) -> None:
        self._real.close()


def test_what_is_sent_again_is_learned_once(server, client, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    network = Lossy()
    with Client(http=httpx.Client(base_url=server.url, transport=network)) as lossy:
        lossy.create("lossy", SPEC)
        got = lossy.learn("lossy", X, Y, rows_per_request=4)
        one = lossy.learn("lossy", X[0], 1)
    assert network.sent > 20
    # Whatever was answered is the first answer, kept or given late.
    assert (got.count, got.learned, got.chunks) == (40, 40, 10)
    assert one.seq == 41 and client.get("lossy").samples == 41
    asyncio.run(check_once(server, "lossy", 41))
    with Client(http=httpx.Client(base_url=server.url, transport=Lossy())) as lossy:
        lossy.delete("lossy")
    assert "lossy" not in [model.id for model in client.models()]


class LosingFirst(httpx.BaseTransport):
    """A network that loses the first answer to each request of some method."""

    def __init__(self, method: str) -> None:
        self._real, self._method = httpx.HTTPTransport(), method
        self._lost: set[str] = set()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._real.handle_request(request)
        if request.method == self._method and request.url.path not in self._lost:
            self._lost.add(request.url.path)
            answer.read()
            answer.close()
            raise httpx.ReadError("the connection was lost")
        return answer

    def close(self) -> None:
        self._real.close()


def test_a_promotion_is_ended_though_the_answer_was_lost(server, client, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    members = [{"algorithm": "sgd"}, {"name": "sparse", "algorithm": "rda"}]
    client.create("promoted", {**SPEC, "algorithm": "portfolio", "members": members})
    client.promote("promoted", "sparse")
    network = LosingFirst("DELETE")
    with Client(http=httpx.Client(base_url=server.url, transport=network)) as losing:
        ended = losing.end_promotion("promoted")
        assert ended.promoted is None and len(ended.members) == 2
        losing.remove_member("promoted", "sparse")
        losing.delete("promoted")
        with pytest.raises(Refused) as refused:  # nothing was done that a first answer had shown
            losing.end_promotion("nobody")
    assert (refused.value.status, refused.value.kind) == (404, "unknown-model")


async def check_once(server: ServerProcess, model: str, samples: int) -> None:
    store = server.process.args[server.process.args.index("--store") + 1]
    journal = await open_journal(store)
    try:
        report = await check_history(journal, model, [], samples=samples)
        assert report.rows == samples
    finally:
        await journal.close()


def test_keyed_stream_resumes_after_a_broken_connection(client):
    client.create("keyed", SPEC)

    def broken() -> Iterator:
        yield from zip(X[:20].tolist(), Y[:20].tolist(), strict=True)
        raise OSError("the source is gone")

    with pytest.raises(OSError):
        client.learn_iter("keyed", broken(), key="k", rows_per_request=8)
    whole = list(zip(X.tolist(), Y.tolist(), strict=True))
    got = client.learn_iter("keyed", whole, key="k", rows_per_request=8)
    assert (got.seq, got.chunks, got.duplicate_chunks, got.duplicate) == (40, 5, 2, False)
    with pytest.raises(Refused, match="another request") as refused:
        client.learn_iter("keyed", whole[1:], key="k", rows_per_request=8)
    assert refused.value.kind == "idempotency-key-reused"
    client.delete("keyed")


def test_scores_and_places_count_over_all_requests(client):
    client.create("placed", SPEC)
    x, y = X.tolist(), [*Y[:30].tolist(), None, *Y[31:].tolist()]
    got = client.learn("placed", x, y, scores=True, rows_per_request=9)
    assert [error["index"] for error in got.errors] == [30]
    assert len(got.scores) == 40 and got.scores[30] is None and None not in got.scores[:30]
    many = client.predict("placed", [*x[:20], [1.0], *x[20:]], rows_per_request=6)
    one_by_one = [client.predict("placed", row).score for row in x]
    assert many.scores == [*one_by_one[:20], None, *one_by_one[20:]]
    assert [error["index"] for error in many.errors] == [20] and many.rejected == 1
    assert len(many.labels) == len(many.probabilities) == 41
    client.delete("placed")


def test_what_may_pass_is_waited_for_and_a_refusal_is_not(monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    inputs = [httpx.Response(503, headers={"retry-after": "1"}), httpx.Response(429)]
    inputs += [httpx.Response(409, json={"type": "/problems/conflict", "detail": "no"})]
    http = httpx.Client(base_url="http://x", transport=httpx.MockTransport(lambda _: inputs.pop(0)))
    with pytest.raises(Refused, match="no") as refused:
        Client(http=http).get("m")
    assert refused.value.kind == "conflict" and waited[0] == 1.0 and 0 < waited[1] < 1
    http = httpx.Client(
        base_url="http://x", transport=httpx.MockTransport(lambda _: httpx.Response(503))
    )
    with pytest.raises(Unreachable, match="status 503"):
        Client(http=http, patience_s=0).get("m")


PAGE = {"headers": {"content-type": "text/html"}, "text": "<html><h1>Not Found</h1></html>"}
OF_A_GATEWAY = {
    "a router that does not know the route": httpx.Response(404, **PAGE),
    "a router with JSON": httpx.Response(404, json={"message": "no Route matched"}),
    "problems of another service": httpx.Response(
        400, json={"type": "https://tools.ietf.org/html/rfc7231", "detail": "bad"}
    ),
    "a redirect": httpx.Response(307, headers={"location": "https://login.example/"}),
    "a page": httpx.Response(200, **PAGE),
    "a page in capitals": httpx.Response(200, headers={"content-type": "Text/HTML ; charset=a"}),
    "a text": httpx.Response(200, text="hi"),
    "another document": httpx.Response(200, json={"status": "maintenance"}),
    "a gateway's fault": httpx.Response(500, **PAGE),
    "a body that came too slowly": httpx.Response(408, json={"type": "/problems/too-slow"}),
    "early data": httpx.Response(425),
    "another connection's host": httpx.Response(421),
}


def test_answers_that_are_not_the_servers_are_waited_for(monkeypatch, subtests):
    for case in list(OF_A_GATEWAY):
        with subtests.test(case=case):
            waited: list[float] = []
            monkeypatch.setattr("time.sleep", waited.append)
            problem = {"type": "/problems/conflict", "detail": "no"}
            calls = [
                lambda client: client.get("m"),
                lambda client: client.delete("m"),
                lambda client: client.learn("m", {"a": 1.0}, 1),
            ]
            for call in calls:
                inputs = [OF_A_GATEWAY[case], httpx.Response(409, json=problem)]
                network = httpx.MockTransport(lambda _, inputs=inputs: inputs.pop(0))
                http = httpx.Client(base_url="http://x", transport=network)
                is_deletion = call is calls[1]
                if is_deletion and case in (
                    "a text",
                    "another document",
                ):  # a deletion has no answer
                    call(Client(http=http))
                    continue
                with pytest.raises(Refused, match="no"):
                    call(Client(http=http))
                inputs.append(OF_A_GATEWAY[case])
                with pytest.raises(Unreachable, match=r"not from Dualstream \(|unavailable"):
                    call(Client(http=http, patience_s=0))
            assert waited


def test_a_deletion_that_a_gateway_did_not_report_is_done(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    unknown = httpx.Response(404, json={"type": "/problems/unknown-model"})
    page = OF_A_GATEWAY["a router that does not know the route"]

    def deleted(*answers: httpx.Response) -> None:
        inputs = list(answers)
        network = httpx.MockTransport(lambda _: inputs.pop(0))
        Client(http=httpx.Client(base_url="http://x", transport=network)).delete("m")
        assert not inputs

    deleted(httpx.Response(504), page, page, unknown)
    for first in ([], [httpx.Response(429)], [httpx.Response(503)]):
        with pytest.raises(Refused):
            deleted(*first, unknown)


def test_a_redirect_is_named():
    network = httpx.MockTransport(lambda _: OF_A_GATEWAY["a redirect"])
    http = httpx.Client(base_url="http://x", transport=network)
    with pytest.raises(Unreachable, match=r"\(status 307, to https://login.example/\); check the"):
        Client(http=http, patience_s=0).get("m")


def test_a_gateway_that_refuses_a_body_is_named():
    network = httpx.MockTransport(lambda _: httpx.Response(413, **PAGE))
    http = httpx.Client(base_url="http://x", transport=network)
    with pytest.raises(Refused, match=r"a gateway .* of 21 bytes; raise its limit") as refused:
        Client(http=http).learn("m", {"a": 1.0}, 1)
    assert (refused.value.kind, refused.value.status) == ("body-too-large", 413)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (([[1, 0, 0, 0]], [1, 0]), "'y' has more values than"),
        (([[1, 0, 0, 0]] * 2, [1]), "but there are more rows"),
        (([], []), "no row"),
        (("text", 1), "rows must be lists"),
        (([{"a": object()}], [1]), "object is not a number"),
        ((pd.DataFrame({"a": [1]}), "label"), "no column 'label'"),
    ],
)
def test_what_cannot_be_sent_is_shown_before(client, given, why):
    with pytest.raises(BadInput, match=why):
        client.learn("nobody", *given)
    with pytest.raises(BadInput, match="1 to 255 bytes"):
        client.learn("nobody", {"a": 1}, 1, key="k" * 256)


def test_half_of_a_surrogate_pair_is_named(client):
    half = "a\ud83d"
    for send in (
        lambda: client.create(half),
        lambda: client.get(half),
        lambda: client.learn("m", {"a": 1}, 1, key=half),
        lambda: client.predict("m", {"a": 1}, version=half),
        lambda: client.audit(half),
        lambda: client.delete_version("m", half),
    ):
        with pytest.raises(BadInput, match="surrogates not allowed"):
            send()


def test_samples_are_not_rows(client):
    client.create("samples", SPEC)
    samples = [{"x": {"1": 1.0}, "y": 1}, {"x": [0, 1, 0, 0], "y": 0}]
    for case in (samples, samples[0]):
        with pytest.raises(
            BadInput, match='samples {"x": ..., "y": ...}, learn them by `learn_iter`'
        ):
            client.learn("samples", case)
    assert client.learn_iter("samples", samples).seq == 2
    client.delete("samples")


def test_explanations_of_many_rows_are_joined_and_curves_are_read(client):
    client.create("bent", {"algorithm": "splines"})
    rows = [{"age": float(k % 7), "hour": float(k % 5)} for k in range(60)]
    client.learn("bent", rows, [k % 2 for k in range(60)])
    many = client.predict("bent", [*rows[:45], {"age": None}], explain=True)
    one = client.predict("bent", rows[44], explain=True)
    assert len(many.explanations) == 46 and many.explanations[45] is None
    assert many.explanations[44] == one.explanation
    parts = sum(each.contribution for each in one.explanation.contributions)
    assert one.explanation.base + parts == pytest.approx(one.score)
    assert not client.predict("bent", rows[:2]).explanations
    curves = client.curves("bent").curves
    assert {curve.name for curve in curves} == {"age", "hour"}
    assert curves[0].x == sorted(curves[0].x) and len(curves[0].x) == len(curves[0].y)
    client.delete("bent")


@pytest.mark.parametrize(
    ("model", "label"), [("no", False), ("yes", True), ("zero", 0), ("numpy", np.bool_(False))]
)
def test_a_default_label_may_be_any_label(client, model, label):
    """False is one, and no flag that is not set."""
    client.create(model, {"algorithm": "sgd", "features": "hashed"})
    options = {"default_label": label, "default_after_s": 0.05}
    got = client.predict_and_remember(model, [{"a": 1}], ["a"], **options)
    assert got.remembered == 1
    deadline = time.monotonic() + 20
    while not (view := client.get(model)).samples:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert view.samples == 1
    assert (client.weights(model).weights[0].weight > 0) == bool(label)
    client.delete(model)


def test_a_decimal_is_the_number_that_it_is(client, server):
    async def awaited(model: str, x: list, y: list):
        async with AsyncClient(server.url) as asynchronous:
            return await asynchronous.learn_iter(model, zip(x, y, strict=True))

    def labelled(model: str, x: list, y: list):
        client.predict_and_remember(model, x, ["a", "b"], default_label=y[0])
        return client.learn_labels(model, dict(zip(["a", "b"], y, strict=True)))

    prices, labels = [1.5, 2.5], [0.25, 3.0]
    ways = {
        "objects": lambda m, x, y: client.learn(m, x, y, weight=[Decimal("1.0"), Decimal(1)]),
        "frame": lambda m, x, y: client.learn(m, pd.DataFrame(x).assign(y=y), "y"),
        "array": lambda m, x, y: client.learn(
            m, np.array([list(row.values()) for row in x]), np.array(y), names=["price"]
        ),
        "single": lambda m, x, y: [client.learn(m, *pair) for pair in zip(x, y, strict=True)],
        "lists": lambda m, x, y: client.learn(
            m, [[*row.values()] for row in x], y, names=["price"]
        ),
        "list": lambda m, x, y: [
            client.learn(m, [*row.values()], label, names=["price"])
            for row, label in zip(x, y, strict=True)
        ],
        "awaited": lambda m, x, y: asyncio.run(awaited(m, x, y)),
        "labels": labelled,
    }
    for name, way in ways.items():
        states = []
        for kind in (float, lambda number: Decimal(str(number))):
            client.create("priced", NAMED | {"task": "regression"})
            way("priced", [{"price": kind(price)} for price in prices], [*map(kind, labels)])
            weights = client.weights("priced").weights
            assert [weight.name for weight in weights] == ["price"], name
            states.append((client.get("priced").samples, weights))
            client.delete("priced")
        assert states[0] == states[1] and states[0][0] == 2, name


@pytest.mark.parametrize(
    ("number", "as_float"),
    [("NaN", float("nan")), ("sNaN", float("nan")), ("1E+101", 1e101), ("-1E+400", None)],
)
def test_a_decimal_is_refused_as_the_number_that_it_is(client, number, as_float):
    client.create("priced", NAMED | {"task": "regression"})
    good, bad = Decimal("1.5"), Decimal(number)
    x = [{"price": good}, {"price": bad}, {"price": good}, {"price": good}]
    got = client.learn("priced", x, [1, 1, bad, 1], weight=[1, 1, 1, bad])
    assert (got.learned, got.rejected) == (1, 3)
    results = [(error["index"], error["pointer"]) for error in got.errors]
    assert results == [(1, "/x/price"), (2, "/y"), (3, "/weight")]
    if as_float is not None:
        x[1], y, weight = {"price": as_float}, [1, 1, as_float, 1], [1, 1, 1, as_float]
        assert client.learn("priced", x, y, weight=weight).errors == got.errors
    with pytest.raises(Refused) as refused:
        client.learn("priced", {"price": bad}, 1)
    assert refused.value.errors[0]["pointer"] == "/x/price"
    client.delete("priced")


class Whole(int):
    pass


class Grade(IntEnum):
    HIGH = 2


class City(StrEnum):
    OSLO = "Oslo"


class Old(str, Enum):  # noqa: UP042
    ROME = "Rome"


class Share(float, Enum):
    HALF = 0.5


def test_numbers_and_texts_of_any_type_are_what_they_are():
    x = {
        "whole": Whole(3),
        "grade": Grade.HIGH,
        "city": City.OSLO,
        "old": Old.ROME,
        "share": Share.HALF,
        "double": np.float64(0.5),
        "single": np.float32(0.25),
        "small": np.int8(7),
        "flag": np.True_,
        "text": np.str_("a"),
        "alone": np.array(1.5),
        "missing": None,
        "NA": pd.NA,
        "nan": np.float32("nan"),
    }
    sample = {"x": x, "y": np.int64(1), "weight": np.float32(0.5), "id": np.int64(4)}
    got = (
        b'{"x":{"whole":3,"grade":2,"city":"Oslo","old":"Rome","share":0.5,"double":0.5,'
        b'"single":0.25,"small":7,"flag":true,"text":"a","alone":1.5,"missing":null,"NA":null,'
        b'"nan":null},"y":1,"weight":0.5,"id":4}'
    )
    assert sample_line(sample) == got
    assert sample_line({"x": (1, Whole(2), Decimal("0.10"))}) == b'{"x":[1,2,0.10]}'


def test_an_id_is_the_text_that_it_has():
    row = {"x": [1]}
    assert sample_line(row | {"id": UUID(int=7)}).endswith(
        b'"00000000-0000-0000-0000-000000000007"}'
    )
    assert sample_line(row | {"id": date(2020, 1, 2)}).endswith(b'"id":"2020-01-02"}')
    assert sample_line(row | {"id": Decimal("17")}).endswith(b'"id":"17"}')


@dataclasses.dataclass
class Money:
    price: float = 1.5


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "called"),
    [
        (timedelta(1), "timedelta"),
        (UUID(int=1), "UUID"),
        (b"1.5", "bytes"),
        (bytearray(b"1.5"), "bytearray"),
        (memoryview(b"1.5"), "memoryview"),
        (Money(), "Money"),
        (Colour.RED, "Colour"),
        ({1.5}, "set"),
        (1j, "complex"),
        (np.timedelta64(1, "ns"), "timedelta64"),
        (np.bytes_(b"a"), "bytes_"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_is_no_number_bool_or_text_is_refused_before_it_is_sent(value, called):
    sent: list[httpx.Request] = []
    network = httpx.MockTransport(lambda request: sent.append(request) or httpx.Response(500))
    client = Client(http=httpx.Client(base_url="http://x", transport=network), patience_s=0)
    asynchronous = AsyncClient(
        http=httpx.AsyncClient(base_url="http://x", transport=network), patience_s=0
    )
    good = {"a": 1.0, "b": "text"}
    bad = good | {"price": value}
    column = pd.Series([1.5, value], dtype=object)
    # What is a column of NumPy's own is one of that type.
    array = np.array([value, value]) if isinstance(value, np.generic) else None
    feature, label, weight = "row 1: feature 'price'", "row 1: the label", "row 1: the weight"
    ways = [
        (feature, lambda: client.learn("m", [good, bad], [1, 0])),
        (feature, lambda: client.learn("m", pd.DataFrame({"a": 1.0, "price": column}), [1, 0])),
        (feature, lambda: client.learn_iter("m", [(good, 1), {"x": bad, "y": 1}])),
        (feature, lambda: asyncio.run(asynchronous.learn_iter("m", [(good, 1), (bad, 1)]))),
        (feature, lambda: client.predict("m", [good, bad])),
        (feature, lambda: client.predict_and_remember("m", [good, bad], ["a", "b"])),
        ("row 0: feature 'price'", lambda: client.learn("m", bad, 1)),
        ("row 0: feature 'price'", lambda: client.predict("m", bad)),
        ("row 0: feature 2", lambda: client.learn("m", [1.5, value], 1)),
        ("row 1: feature 2", lambda: client.learn("m", [[1.5, 2], [1.5, value]], [1, 0])),
        (label, lambda: client.learn("m", [good, good], [1, value])),
        (label, lambda: client.learn("m", [good, good], column)),
        ("row 0: the label", lambda: client.learn("m", good, value)),
        ("the label of 'a'", lambda: client.learn_labels("m", {"a": value})),
        (
            "default label",
            lambda: client.predict_and_remember("m", [good], ["a"], default_label=value),
        ),
        (weight, lambda: client.learn("m", [good, good], [1, 0], weight=[1, value])),
        ("row 0: the weight", lambda: client.learn("m", good, 1, weight=value)),
    ]
    if array is not None:
        ways += [
            ("row 0: feature 1", lambda: client.learn("m", array, 1)),
            (
                "row 0: feature 'price'",
                lambda: client.learn("m", array[:, None], [1, 0], names=["price"]),
            ),
            ("row 0: the label", lambda: client.learn("m", [good, good], array)),
        ]
    for where, way in ways:
        with pytest.raises(BadInput) as refused:
            way()
        said = str(refused.value)
        # NumPy's bytes come out of an array as Python's own.
        names = {called, called.rstrip("_")}
        assert where in said and any(f": {n} is not a number, bool or text" in said for n in names)
    assert not sent


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (datetime(2020, 1, 2), "a datetime"),
        (date(2020, 1, 2), "a date"),
        (pd.Timestamp("2020-01-02"), "a Timestamp"),
        (np.datetime64("2020-01-02", "ns"), "a datetime64"),
        ([1.5], "a list"),
        (np.array([1.5]), "a list"),
        ({"a": 1.5}, "an object"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_lists_objects_and_times_are_not_sent_to_a_model_without_columns(value, kind):
    model = {"id": "m", "spec": {}, "seq": 0, "created": "2020-01-01T00:00:00Z"}
    sent: list[httpx.Request] = []

    def answer(request):
        if request.method == "GET":
            return httpx.Response(200, json=model)
        sent.append(request)
        return httpx.Response(500)

    network = httpx.MockTransport(answer)
    client = Client(http=httpx.Client(base_url="http://x", transport=network), patience_s=0)
    asynchronous = AsyncClient(
        http=httpx.AsyncClient(base_url="http://x", transport=network), patience_s=0
    )
    good = {"a": 1.0, "b": "text"}
    bad = good | {"price": value}
    table = pd.DataFrame({"a": 1.0, "price": pd.Series([1.5, value], dtype=object)})
    ways = {
        0: [lambda: client.learn("m", bad, 1), lambda: client.predict("m", bad)],
        1: [
            lambda: client.learn("m", [good, bad], [1, 0]),
            lambda: client.learn("m", [good, bad]),
            lambda: client.learn("m", table, [1, 0]),
            lambda: client.learn_iter("m", [(good, 1), {"x": bad, "y": 1}]),
            lambda: asyncio.run(asynchronous.learn_iter("m", [(good, 1), (bad, 1)])),
            lambda: client.predict("m", [good, bad]),
            lambda: client.predict_and_remember("m", [good, bad], ["a", "b"]),
        ],
    }
    for row, calls in ways.items():
        for call in calls:
            with pytest.raises(BadInput) as refused:
                call()
            said = str(refused.value)
            assert f"row {row}: feature 'price' is {kind}; model 'm' has no `columns`" in said
    with pytest.raises(BadInput, match="row 1: the label: "):
        client.learn("m", [good, good], [1, value])
    with pytest.raises(BadInput, match="row 0: the weight: "):
        client.learn("m", good, 1, weight=value)
    assert not sent


@pytest.mark.parametrize("row", [Money(), {1.5}, b"1.5", 1.5])
def test_a_row_is_a_list_an_object_or_an_array_and_counts_over_all_requests(row):
    with pytest.raises(BadInput, match="row 2: a row must be"):
        list(bodies_of([{"x": [1]}, {"x": [1]}, {"x": row}], rows_per_request=1))
    with pytest.raises(BadInput, match=f"row 1: a row must be .* got {type(row).__name__}"):
        sample_line({"x": row}, 1)


def test_both_clients_have_the_same_methods():
    def public(of: type) -> dict[str, tuple]:
        return {
            name: (list(inspect.signature(method).parameters.items()), method.__doc__)
            for name, method in inspect.getmembers(of, inspect.isfunction)
            if not name.startswith("_")
        }

    blocking, awaited = public(Client), public(AsyncClient)
    assert blocking == awaited and {"events", "learn", "unlearn"} <= set(blocking)
    assert all(doc for _, doc in blocking.values())
    for name in set(awaited) - {"events", "predict_file"}:
        assert inspect.iscoroutinefunction(getattr(AsyncClient, name)), name
        assert not inspect.iscoroutinefunction(getattr(Client, name)), name
    assert inspect.signature(Client.versions).return_annotation is changes.Versions
    assert inspect.signature(AsyncClient.learn_iter).return_annotation is LearnedStream


def test_a_client_can_be_mocked_with_its_signatures():
    mocked = create_autospec(Client, instance=True)
    mocked.get("m", digest=True)
    with pytest.raises(TypeError):
        mocked.get("m", digests=True)


def calls_of(client: Client) -> None:
    """Make every call, with every parameter."""
    calls = [
        lambda: client.create("m", {}, replace=True),
        lambda: client.get("m", digest=True),
        lambda: client.models(),
        lambda: client.delete("m"),
        lambda: client.learn("m", {"a": 1}, 1, key="k"),
        lambda: client.learn("m", [{"a": 1}], [1], key="k", scores=True),
        lambda: client.learn("m", [{"a": 1}], [1], scores=True, source=Source("s", 0, 0)),
        lambda: client.observe("m", {"a": 1}, key="k"),
        lambda: client.observe("m", [{"a": 1}], source=Source("s", 0, 0)),
        lambda: client.sources("m"),
        lambda: client.set_source("m", "s", 1),
        lambda: client.forget_source("m", "s"),
        lambda: client.learn_labels("m", {"a": 1}, key="k"),
        lambda: client.predict("m", {"a": 1}, min_seq=1, version="v", explain=True),
        lambda: client.predict("m", [{"a": 1}], min_seq=1, version="v"),
        lambda: client.predict_and_remember(
            "m", [{"a": 1}], ["a"], default_label=0, default_after_s=1.5
        ),
        lambda: client.metrics("m"),
        lambda: client.segments("m", "country"),
        lambda: client.timeline("m"),
        lambda: client.columns("m", sort="name"),
        lambda: client.weights("m", top=3, member="a"),
        lambda: client.curves("m", top=3, member="a"),
        lambda: client.support("m"),
        lambda: client.certificate("m", member="a"),
        lambda: client.export("m", "vw", member="a"),
        lambda: list(client.events("m", every_ms=100)),
        lambda: client.members("m"),
        lambda: client.add_member("m", {}, key="k"),
        lambda: client.remove_member("m", "a"),
        lambda: client.promote("m", "a"),
        lambda: client.end_promotion("m"),
        lambda: client.compare_members("m", "a", "b", level=0.9),
        lambda: client.take_version("m", "v", note="n"),
        lambda: client.versions("m"),
        lambda: client.delete_version("m", "v"),
        lambda: client.roll_back("m", version="v", key="k"),
        lambda: client.resume("m", rows="drop", key="k"),
        lambda: client.refit("m", method="mcpa", tol=0.1, rows=9, options={"parts": 8}),
        lambda: client.refits("m"),
        lambda: client.read_refit("m", "j"),
        lambda: client.cancel_refit("m", "j"),
        lambda: client.set_weights("m", {"a": 1}, rows=9, objective=1.0, gap=0.1, key="k"),
        lambda: client.unlearn("m", "s"),
        lambda: client.audit("m", after="1-1.m"),
        lambda: client.ready(),
    ]
    for call in calls:
        with pytest.raises(Refused):
            call()


def test_every_call_is_a_route_and_every_answer_has_its_fields(server):
    document = httpx.get(f"{server.url}/openapi.json").json()
    paths = {tuple(path.split("/")): got for path, got in document["paths"].items()}
    sent: list[httpx.Request] = []
    problem = httpx.Response(404, json={"type": "/problems/unknown-model"})
    network = httpx.MockTransport(lambda request: sent.append(request) or problem)
    http = httpx.Client(base_url="http://x", transport=network)
    mine = {"host", "content-length", *http.headers}
    with Client(http=http) as recorded:
        calls_of(recorded)
    assert len(sent) == 45
    for call in sent:
        inputs = tuple(call.url.path.split("/"))
        results = [
            got[call.method.lower()]
            for path, got in paths.items()
            if len(path) == len(inputs)
            and all(a == b or a.startswith("{") for a, b in zip(path, inputs, strict=True))
            and call.method.lower() in got
        ]
        assert len(results) == 1, call
        previous = {parameter["name"].lower() for parameter in results[0].get("parameters", [])}
        assert set(call.url.params) - {"verbose"} <= previous, call
        headers = set(call.headers) - mine - {"content-type"}
        assert headers <= previous | {"idempotency-key"}, call
    described = document["components"]["schemas"]
    answered = {
        name: kind
        for module in (answers, changes, responses, schemas)
        for name, kind in vars(module).items()
        if getattr(kind, "__module__", "") == module.__name__ and isinstance(kind, type)
    }
    assert {"Learned", "Model"} < set(answered)
    for name in set(answered) - {"MaybeStale", "Event"}:
        schema = described["TimelineView" if name == "Timeline" else name]["properties"]
        mine = {field.encode_name for field in structs.fields(answered[name])}
        assert mine <= set(schema), name
