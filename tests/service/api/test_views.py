"""Views of models: right answers, threads for large models, memory for what rows touched."""

import asyncio
import resource
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

from dualstream.service.replica import views
from dualstream.solvers.protocols.member_learner import member_learner
from tests.service.api.support import Listener
from tests.service.support import scraped
from tests.solvers.specs import DIM, SPECS

WIDEST = 2_147_483_646
MIB = 1 << 20
ROWS = 40

ONE_OF_EACH = {spec["algorithm"]: spec for spec in reversed(SPECS.values())}
CLASSES = {
    f"{name} of classes": {**spec, "task": "multiclass"}
    for name, spec in ONE_OF_EACH.items()
    if spec.get("task", "binary") == "binary" and name != "portfolio"
}
MODELS = ONE_OF_EACH | CLASSES


def samples(spec, rows=ROWS):
    """Rows with labels of the task."""
    classes = spec.get("task") == "multiclass"
    return [
        {
            "x": [
                ((n * k * 7919) % 101 - 50) / 50 if (n + k) % 3 else 0 for k in range(1, DIM + 1)
            ],
            "y": f"c{n % 4}" if classes else n % 2,
        }
        for n in range(rows)
    ]


def make(client, spec, rows=ROWS):
    """The model m with rows; returns the Model."""
    answer = client.put("/models/m", json=dict(spec))
    assert answer.status_code == 201, answer.text
    if rows:
        answer = client.post("/models/m/learn", json={"samples": samples(spec, rows)})
        assert answer.status_code == 200, answer.text
    return client.app._registry.find("m")


def dense_answer(learner, top):
    """Definition of GET /weights, on an array of all weights."""
    weights = np.atleast_2d(learner.weights)
    classes = [text.strip('"') for text in getattr(learner, "classes", ())]
    shown = []
    for at in np.argsort(-np.abs(weights), axis=None, kind="stable")[:top].tolist():
        row, position = divmod(at, weights.shape[1])
        if weights[row, position]:
            label = {"label": classes[row]} if classes else {}
            shown.append({"index": position + 1, **label, "weight": weights[row, position]})
    intercepts = getattr(learner, "intercepts", None)
    sizes = np.abs(weights)
    return {
        "dim": weights.shape[1],
        "intercept": learner.intercept if intercepts is None else intercepts.tolist(),
        "nonzeros": sum(int(np.sum(row > 1e-12 * row.max(initial=0.0))) for row in sizes),
        "weights": shown,
    }


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(views, "LARGE_BYTES", 0)


def test_weights_are_the_heaviest_of_the_dense_array(client):
    for name, spec in MODELS.items():
        learner = make(client, spec).replica.learner
        for top in (1, 5, 1000):
            answer = client.get(f"/models/m/weights?top={top}").json()
            expected = dense_answer(learner, top)
            assert {field: answer[field] for field in expected} == expected, name
        assert scraped(client)['dualstream_nonzeros{model="m"}'] == expected["nonzeros"], name
        assert client.delete("/models/m").status_code == 204


def test_weights_of_a_model_without_classes(client):
    spec = {"task": "multiclass", "features": {"kind": "indexed", "dim": 3}}
    assert client.put("/models/m", json=spec).status_code == 201
    answer = client.get("/models/m/weights").json()
    assert (answer["dim"], answer["nonzeros"], answer["weights"]) == (3, 0, [])
    mapped = {**spec, "map": {"kind": "fourier", "components": 7}}
    assert client.put("/models/mapped", json=mapped).status_code == 201
    assert client.get("/models/mapped/weights").json()["dim"] == 7


# -- large models --------------------------------------------------------------------------------

HEAVY = frozenset(
    {
        "certificate",
        "form",
        "member_certificate",
        "member_form",
        "member_served_weights",
        "member_weights",
        "nonzeros",
        "served_weights",
        "state",
        "support",
        "weights",
    }
)
"""What reads as many numbers as the learner has."""


class Watched:
    """A learner that notes what of HEAVY is read, and whether the event loop's thread read it."""

    def __init__(self, learner):
        self._learner = learner
        self.in_loop, self.in_thread = [], []

    def __getattr__(self, name):
        if name in HEAVY and hasattr(self._learner, name):
            try:
                asyncio.get_running_loop()
                self.in_loop.append(name)
            except RuntimeError:
                self.in_thread.append(name)
        return getattr(self._learner, name)


ROUTES = {
    "weights": ("GET", "/models/m/weights", {"served_weights"}),
    "certificate": ("GET", "/models/m/certificate", {"certificate"}),
    "digest": ("GET", "/models/m?digest=true", {"state"}),
    "version": ("POST", "/models/m/versions", {"state"}),
    "scrape": ("GET", "/metrics", {"nonzeros", "certificate"}),
    "export": ("GET", "/models/m/export?format=json", {"served_weights"}),
    "reference": ("GET", "/models/m/certificate?reference=true", {"certificate"}),
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_view_of_a_large_model_leaves_the_event_loop(client, all_are_large, route):
    model = make(client, SPECS["dual_ascent-logistic"])
    method, path, reads = ROUTES[route]
    watched = model.replica.learner = Watched(model.replica.learner)
    answer = client.request(method, path)
    assert answer.status_code in (200, 201), answer.text
    assert watched.in_loop == []
    assert reads <= set(watched.in_thread)


@pytest.mark.parametrize("path", ["weights?member=newton", "certificate?member=dual"])
def test_a_view_of_a_member_leaves_the_event_loop(client, all_are_large, path):
    members = [
        {"kind": "diagonal_newton", "name": "newton"},
        {"kind": "dual_ascent", "name": "dual"},
    ]
    model = make(client, {**SPECS["portfolio-one"], "members": members})
    watched = model.replica.learner = Watched(model.replica.learner)
    assert client.get(f"/models/m/{path}").status_code == 200
    assert watched.in_loop == [] and watched.in_thread


def test_a_view_of_many_classes_leaves_the_event_loop(client):
    spec = {**SPECS["perceptron"], "task": "multiclass"}
    model = make(client, spec, rows=0)
    rows = [{"x": [1] * DIM, "y": f"c{n % 40}"} for n in range(40)]
    client.post("/models/m/learn", json={"samples": rows[:5]})
    assert not model.replica.is_large
    client.post("/models/m/learn", json={"samples": rows})
    watched = model.replica.learner = Watched(model.replica.learner)
    assert client.get("/models/m/weights").json()["weights"]
    assert watched.in_loop == [] and "served_weights" in watched.in_thread


def test_a_view_that_waits_for_rows_knows_what_they_made_of_the_model(client):
    """The rows that are learned when a view is asked for make the model large."""
    model = make(client, {**SPECS["perceptron"], "task": "multiclass"}, rows=0)
    watched = Watched(model.replica.learner)

    async def view_during_rows() -> None:
        async with model.replica.still():
            view = asyncio.ensure_future(model.replica.view(lambda: watched.served_weights))
            await asyncio.sleep(0)
            model.replica.is_large = True
        await view

    assert not model.replica.is_large
    client.portal.call(view_during_rows)
    assert (watched.in_loop, watched.in_thread) == ([], ["served_weights"])


def test_support_of_a_large_model_leaves_the_event_loop(client, all_are_large):
    model = make(client, SPECS["rda-l1"])
    watched = model.replica.learner = Watched(model.replica.learner)
    assert client.get("/models/m/support").status_code == 200
    assert (watched.in_loop, watched.in_thread) == ([], ["support"])


def test_an_event_of_a_large_model_leaves_the_event_loop(client, all_are_large):
    model = make(client, SPECS["rda-l1"])
    watched = model.replica.learner = Watched(model.replica.learner)
    listener = Listener(client)
    assert listener.status() == 200
    kind, _, data = listener.hear()
    listener.leave()
    assert (kind, data["seq"]) == ("progress", ROWS)
    assert watched.in_loop == [] and {"nonzeros", "support"} <= set(watched.in_thread)


def test_a_snapshot_of_a_large_model_is_captured_in_a_thread(serve, all_are_large):
    client = serve(snapshot_every=10)
    model = make(client, SPECS["dual_ascent-logistic"], rows=5)
    watched = model.replica.learner = Watched(model.replica.learner)
    for part in range(4):
        rows = samples({}, 40)[5 + 5 * part : 10 + 5 * part]
        assert client.post("/models/m/learn", json={"samples": rows}).status_code == 200
    digest = client.get("/models/m?digest=true").json()
    client.portal.call(model.snapshots.close)
    assert model.snapshots.last_seq >= 10
    assert watched.in_loop == [] and "state" in watched.in_thread
    again = serve().get("/models/m?digest=true").json()
    assert (again["seq"], again["state_digest"]) == (25, digest["state_digest"])


@pytest.mark.parametrize("name", ["portfolio-eight", "dual_ascent-entropy-hinge-exponential"])
def test_answers_about_large_and_small_models_are_equal(serve, monkeypatch, name):
    answers = []
    client = serve()
    for limit in (0, 1 << 40):
        monkeypatch.setattr(views, "LARGE_BYTES", limit)
        model = make(client, SPECS[name])
        assert model.replica.is_large == (limit == 0)
        results = [client.get("/models/m?digest=true").json()["state_digest"]]
        for path in ("weights", "certificate", "members", "metrics", "versions", "timeline"):
            answer = client.get(f"/models/m/{path}")
            body = answer.json()
            for varies in ("request_id", "times"):  # of a problem, and of the timeline
                body.pop(varies, None)
            results.append((answer.status_code, body))
        answers.append(results)
        assert client.delete("/models/m").status_code == 204
    assert answers[0] == answers[1]


def test_a_cancelled_view_ends_before_the_next_rows_are_learned(client, all_are_large):
    model = make(client, SPECS["dual_ascent-logistic"])

    async def cancelled():
        entered, leave = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def read():
            loop.call_soon_threadsafe(entered.set)
            asyncio.run_coroutine_threadsafe(leave.wait(), loop).result(timeout=30)

        view = asyncio.create_task(model.replica.view(read))
        await entered.wait()
        view.cancel()
        await asyncio.wait([view])
        is_locked = model.replica._lock.locked()
        leave.set()
        async with model.replica.serving():
            return is_locked, view.cancelled()

    assert client.portal.call(cancelled) == (True, True)
    assert not model.replica._lock.locked()


def test_a_scrape_counts_the_weights_of_a_large_model_again_after_some_time(client, monkeypatch):
    monkeypatch.setattr(views, "LARGE_BYTES", 0)
    model = make(client, SPECS["perceptron"], rows=1)
    before = scraped(client)['dualstream_nonzeros{model="m"}']
    watched = model.replica.learner = Watched(model.replica.learner)
    client.post("/models/m/learn", json={"samples": samples({}, 40)[1:]})
    assert scraped(client)['dualstream_nonzeros{model="m"}'] == before
    assert "nonzeros" not in watched.in_loop + watched.in_thread
    model.replica._nonzeros_at -= 16.0
    assert scraped(client)['dualstream_nonzeros{model="m"}'] == watched._learner.nonzeros
    assert watched.in_thread.count("nonzeros") == 1
    assert watched._learner.nonzeros != before


# -- wide models ---------------------------------------------------------------------------------


@contextmanager
def address_space(more):
    """Let this process map `more` bytes at most: an array of the model's width does not fit."""
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def by_index(rows):
    return [{"x": {"1": 1, str(n % 50 + 2): 2, str(WIDEST): 1}, "y": n % 2} for n in range(rows)]


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_the_widest_portfolio_answers_with_little_memory(serve, task):
    client = serve(snapshot_every=50)
    features = {"kind": "indexed", "dim": WIDEST}
    members = "ten" if task == "regression" else "eight"
    spec = {"members": members, "task": task, "features": features, "guard": "warn"}
    with address_space(1 << 30):
        assert client.put("/models/m", json=spec).status_code == 201
        assert client.post("/models/m/learn", json={"samples": by_index(1)}).status_code == 200
        model = client.app._registry.find("m")
        tracemalloc.start()
        try:
            for method, path, body in (
                ("GET", "/models/m/weights?top=3", None),
                ("POST", "/models/m/predict", {"x": by_index(1)[0]["x"]}),
                ("GET", "/metrics", None),
                ("POST", "/models/m/learn", {"samples": by_index(200)}),
                ("GET", "/models/m/weights?top=1000", None),
                ("GET", "/models/m/members", None),
                ("GET", "/models/m/metrics", None),
                ("GET", "/metrics", None),
                ("GET", "/models/m?digest=true", None),
                ("POST", "/models/m/versions", {"name": "v"}),
                ("POST", "/models/m/predict?version=v", {"x": by_index(1)[0]["x"]}),
                ("GET", "/models/m/export?format=json", None),
                ("POST", "/models/m/rollback", {"version": "v"}),
            ):
                answer = client.request(method, path, json=body)
                assert answer.status_code in (200, 201), (path, answer.text)
            client.portal.call(model.snapshots.write)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        for view in member_learner(model.replica.learner).members():
            answer = client.get(f"/models/m/weights?member={view.name}")
            assert answer.status_code == 200
            assert answer.json()["dim"] == WIDEST
            status = client.get(f"/models/m/certificate?member={view.name}").status_code
            assert status == (200 if view.has_certificate else 404)
    assert model.bytes < views.LARGE_BYTES
    assert peak < 12 * MIB
