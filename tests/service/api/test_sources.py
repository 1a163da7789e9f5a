"""Sources: batches by their offsets are learned once, in order, on both stores."""

import itertools
import json
import random
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from dualstream.service.journal.audit import ANONYMOUS
from dualstream.service.models import sources
from dualstream.service.models.model import Model
from tests.service.conftest import SPEC, assert_problem
from tests.service.journal.faulty import Fault, FaultyJournal
from tests.service.support import loaded

NDJSON = "application/x-ndjson"


def lines(*numbers: object) -> str:
    """Rows whose first feature is their number; a text is a bad row."""
    rows = [{"x": {"1": n} if isinstance(n, int) else n, "y": 1} for n in numbers]
    return "".join(json.dumps(row) + "\n" for row in rows)


def learn(client, source: str, *numbers: object, status: int = 200, query: str = "", **headers):
    answer = client.post(
        f"/models/m/learn{query}",
        content=lines(*numbers),
        headers={"content-type": NDJSON, "dualstream-source": source, **headers},
    )
    assert answer.status_code == status, answer.text
    return answer.json()


def listed(client) -> dict[str, dict]:
    return {one["name"]: one for one in client.get("/models/m/sources").json()["sources"]}


@pytest.fixture
def client(serve, store):
    client = serve(store=store)
    assert client.put("/models/m", json=SPEC).status_code == 201
    return client


def test_batches_are_learned_once_and_in_order(client, store):
    got = learn(client, '"kafka/clicks/0"; from=100; to=199; lag=7; first', 1, 2, 3)
    assert (got["seq"], got["count"], got["learned"], got["duplicate"]) == (3, 3, 3, False)
    assert got["source"] == {"name": "kafka/clicks/0", "next": 200}
    got = learn(client, "kafka/clicks/0;from=100;to=199;first=?1", 1, 2, 3)
    assert (got["seq"], got["count"], got["learned"], got["duplicate"]) == (3, 0, 0, True)
    assert got["source"]["next"] == 200 and got["rejected"] == 0
    # Part of a learned batch is learned, too.
    assert learn(client, "kafka/clicks/0; from=150; to=198", 2)["duplicate"] is True
    for bounds in ("from=150; to=200", "from=201; to=300", "from=0; to=200"):
        refused = learn(client, f"kafka/clicks/0; {bounds}", 9, status=409)
        assert refused["type"] == "/problems/source-moved"
        assert (refused["cursor"], refused["source"]) == (200, "kafka/clicks/0")
    got = learn(client, "kafka/clicks/0; from=200; to=200", 4)
    assert (got["seq"], got["source"]["next"]) == (4, 201)
    assert learn(client, "another; from=5; to=9; first", 5)["seq"] == 5
    result = listed(client)
    assert list(result) == ["another", "kafka/clicks/0"]
    cursor = result["kafka/clicks/0"]
    assert (cursor["next"], cursor["rows"], cursor["refused"], cursor["lag"]) == (201, 4, 0, None)
    assert cursor["updated_at"].endswith("Z")
    assert loaded(store).learner.samples == 5


def test_a_source_begins_with_the_batch_that_says_so(client, store):
    for source in ("s; from=7; to=9", "s; from=7; to=9; first=?0", 's; from="a"; next="b"'):
        refused = learn(client, source, 1, status=409)
        assert (refused["type"], refused["source"]) == ("/problems/unknown-source", "s")
        assert "cursor" not in refused and "`first`" in refused["detail"]
    assert listed(client) == {}
    assert learn(client, "s; from=7; to=9; first", 1)["source"]["next"] == 10
    # Repeated, it is a duplicate. In another place it is compared as any batch.
    assert learn(client, "s; from=7; to=9; first", 1)["duplicate"] is True
    assert learn(client, "s; from=11; to=11; first", 1, status=409)["cursor"] == 10
    # A cursor that is set needs no first batch.
    client.put("/models/m/sources/set", json={"next": 5})
    assert learn(client, "set; from=5; to=5", 2)["source"]["next"] == 6
    client.delete("/models/m/sources/s")
    assert learn(client, "s; from=10; to=10", 3, status=409)["type"] == "/problems/unknown-source"
    assert loaded(store).learner.samples == 2


def test_a_cursor_that_is_lost_while_a_batch_is_appended_refuses_it(client, monkeypatch):
    """The append itself compares the cursor, so that no batch is learned in the middle."""
    learn(client, "s; from=0; to=9; first", 1)
    submit = Model.submit

    async def lose(self, request):
        monkeypatch.setattr(Model, "submit", submit)
        await sources.forget_source(self, "s", ANONYMOUS)
        return await submit(self, request)

    for batch in ("s; from=10; to=10", "s; from=0; to=9"):  # the next one, and one that is known
        monkeypatch.setattr(Model, "submit", lose)
        refused = learn(client, batch, 2, status=409)
        assert refused["type"] == "/problems/unknown-source"
        learn(client, "s; from=0; to=9; first", 1)
    assert client.get("/models/m").json()["seq"] == 3


def test_opaque_offsets(client):
    assert learn(client, 's; from="a"; next="b"; lag=0; first', 1)["source"]["next"] == "b"
    got = learn(client, 's; from="a"; next="b"', 1)
    assert (got["duplicate"], got["seq"]) == (True, 1)
    refused = learn(client, 's; from="a"; next="c"', 1, status=409)
    assert refused["cursor"] == "b"
    learn(client, r's; from="b"; next="\"c\\"', 2)
    assert listed(client)["s"]["next"] == '"c\\'
    assert listed(client)["s"]["lag"] is None
    refused = learn(client, "s; from=1; to=2", 3, status=409)
    assert "its offsets are texts, and the batch has integers" in refused["detail"]
    learn(client, "n; from=1; to=2; first", 3)
    refused = learn(client, 'n; from="3"; next="4"', 3, status=409)
    assert "its offsets are integers, and the batch has texts" in refused["detail"]
    assert refused["cursor"] == 3


def test_bad_rows_are_passed_and_counted(client, store):
    got = learn(client, "s; from=0; to=2; first", 1, "x", 2)
    assert (got["count"], got["rejected"], got["errors"][0]["index"]) == (2, 1, 1)
    got = learn(client, "s; from=3; to=4", "x", "y")
    assert (got["seq"], got["count"], got["learned"], got["duplicate"]) == (2, 0, 0, False)
    assert (got["rejected"], len(got["errors"]), got["source"]["next"]) == (2, 2, 5)
    again = learn(client, "s; from=3; to=4", "x", "y")
    assert (again["duplicate"], again["rejected"], len(again["errors"])) == (True, 2, 2)
    # A compacted topic: no row is left between these offsets.
    got = learn(client, "s; from=5; to=9")
    assert (got["seq"], got["count"], got["rejected"], got["duplicate"]) == (2, 0, 0, False)
    cursor = listed(client)["s"]
    assert (cursor["next"], cursor["rows"], cursor["refused"]) == (10, 2, 3)
    # A body that cannot be parsed at all does not move the cursor.
    headers = {"dualstream-source": "s; from=10; to=11", "content-type": "application/json"}
    assert_problem(
        client.post("/models/m/learn", content="{", headers=headers), 400, "malformed-body"
    )
    assert listed(client)["s"]["next"] == 10
    assert loaded(store).learner.samples == 2


def test_rows_with_ids_are_learned_once_also_by_a_source(client, store):
    def post(source: str, *samples: dict):
        headers = {"dualstream-source": source}
        return client.post("/models/m/learn", json={"samples": list(samples)}, headers=headers)

    sample = {"x": {"1": 1}, "y": 1, "id": "a"}
    client.post("/models/m/learn", json=sample)
    got = post("s; from=0; to=1; first", sample, {"x": {"2": 1}, "y": 0}).json()
    assert (got["count"], got["duplicate"], got["duplicates"]) == (
        1,
        False,
        [{"index": 0, "seq": 1}],
    )
    got = post("s; from=2; to=2", sample).json()
    assert (got["count"], got["duplicate"], got["source"]["next"]) == (0, True, 3)
    got = post("s; from=3; to=3", sample | {"y": 0}).json()
    assert (got["count"], got["rejected"], got["source"]["next"]) == (0, 1, 4)
    assert got["duplicate"] is False and got["errors"][0]["pointer"] == "/samples/0/id"
    assert loaded(store).learner.samples == 2


@pytest.mark.parametrize(
    ("media", "body"),
    [
        ("application/json", '{"x": {"1": 1}, "y": 1}'),
        ("application/json", '{"x": [[1, 0, 0, 0, 0]], "y": [1]}'),
        ("text/csv", "1,y\n1,1\n"),
        ("text/x-vw", "1 | 1:1\n"),
        ("text/x-libsvm", "+1 1:1\n"),
    ],
)
def test_every_format_moves_the_cursor(client, media, body):
    headers = {"content-type": media, "dualstream-source": "s; from=0; to=0; first"}
    got = client.post("/models/m/learn", content=body, headers=headers).json()
    assert (got["count"], got["source"]) == (1, {"name": "s", "next": 1})
    again = client.post("/models/m/learn", content=body, headers=headers).json()
    assert (again["count"], again["duplicate"]) == (0, True)
    assert ("scores" in got) == ("scores" in again) == (body[:6] == '{"x": ' and body[6] == "{")


def test_a_long_body_is_one_append(client, store):
    """Without a source, such a body is learned in chunks of 1 MiB."""
    count = 60_000
    got = learn(client, f"s; from=0; to={count - 1}; first", *[1] * count)
    assert (got["seq"], got["count"], got["source"]["next"]) == (count, count, count)
    assert "chunks" not in got
    headers = {"accept": NDJSON}
    got = learn(client, f"s; from={count}; to={count}", 1, **headers)
    assert got["source"]["next"] == count + 1


def test_requests_that_contradict_themselves_are_refused(client):
    for source, reason in {
        "": "the source's name must be a token or",
        "1; from=0; to=1": "the source's name must be a token or",
        "s": "from, the first offset of the batch, is missing",
        "s; from=1": "needs to",
        "s; from=2; to=1": "to must be an integer from 2",
        "s; from=1; to=2; next=3": "no next",
        's; from="a"; to=2': 'needs next="..."',
        's; from="a"; next="a"': "another text",
        "s; from=1; to=2; lag=-1": "lag",
        "s; from=1; to=2; until=3": "unknown parameter 'until'",
        "s; from=1; to=2; first=1": "first is a boolean",
        "s; from=1; to=2, t; from=1; to=2": "not a parameter",
        "s; from=1234567890123456; to=1234567890123457": "up to 15 digits",
        "s; from=1; from=1; to=2": "repeated",
        '"' + "n" * 257 + '"; from=0; to=1': "1 to 256 printable",
    }.items():
        refused = learn(client, source, 1, status=422)
        assert refused["type"] == "/problems/invalid-source"
        assert reason in refused["detail"], refused["detail"]
    headers = {"idempotency-key": "k"}
    assert "Idempotency-Key" in learn(client, "s; from=0; to=1", 1, status=422, **headers)["detail"]
    assert (
        "atomic" in learn(client, "s; from=0; to=1", 1, status=422, query="?atomic=true")["detail"]
    )
    twice = [("dualstream-source", "s; from=0; to=1")] * 2
    answer = client.post("/models/m/labels", json={"labels": []}, headers=dict(twice))
    assert_problem(answer, 422, "invalid-source")
    assert listed(client) == {} and client.get("/models/m").json()["seq"] == 0


def test_a_cursor_is_set_and_forgotten(client, store):
    name = 'kafka/a b/"0"'
    path = f"/models/m/sources/{quote(name, safe='')}"
    header = '"' + name.replace('"', '\\"') + '"'
    learn(client, f"{header}; from=0; to=9; lag=5; first", 1)
    got = client.put(path, json={"next": 5}).json()
    assert (got["name"], got["next"], got["rows"], got["lag"]) == (name, 5, 1, None)
    assert learn(client, f"{header}; from=0; to=9", 1, status=409)["cursor"] == 5
    learn(client, f"{header}; from=5; to=9", 2)
    assert client.put(path, json={"next": "text"}).json()["next"] == "text"
    assert client.delete(path).status_code == 204
    assert listed(client) == {}
    assert_problem(client.delete(path), 404, "unknown-source")
    learn(client, f"{header}; from=7; to=7", 3, status=409)
    learn(client, f"{header}; from=7; to=7; first", 3)
    assert listed(client)[name]["rows"] == 1
    assert client.put("/models/m/sources/new", json={"next": 0}).json()["rows"] == 0
    for wrong in (-1, 10**15, "", "a" * 257, "é", None, 1.5, True):
        answer = client.put("/models/m/sources/new", json={"next": wrong})
        assert answer.status_code == 422, wrong
    assert_problem(client.put("/models/m/sources/%C3%A9", json={"next": 1}), 422, "invalid-source")
    assert_problem(client.get("/models/m/sources/new"), 405, "method-not-allowed")
    changes = client.get("/audit?model=m").json()["changes"]
    assert [(one["action"], one["detail"]) for one in changes[1:]] == [
        ("source_set", {"source": name, "before": 10, "next": 5}),
        ("source_set", {"source": name, "before": 10, "next": "text"}),
        ("source_forget", {"source": name, "before": "text"}),
        ("source_set", {"source": "new", "before": None, "next": 0}),
    ]
    assert {one["outcome"] for one in changes} == {"done"}


def test_a_new_model_has_no_sources(client):
    learn(client, "s; from=0; to=0; first", 1)
    assert client.delete("/models/m").status_code == 204
    assert client.put("/models/m", json=SPEC).status_code == 201
    assert listed(client) == {}
    assert learn(client, "s; from=0; to=0; first", 1)["seq"] == 1
    head = {"if-match": client.get("/models/m").headers["etag"]}
    assert client.put("/models/m", json=SPEC | {"seed": 1}, headers=head).status_code in (200, 201)
    assert listed(client) == {}


def test_a_worker_that_has_the_deleted_model_learns_for_the_new_one(serve, store):
    workers = [serve(store=store), serve(store=store)]
    for replaced in (False, True):
        workers[0].put("/models/m", json=SPEC)
        learn(workers[1], "s; from=5; to=9; first", 1)
        if replaced:
            other = SPEC | {"rho": 0.5}
            headers = {"if-match": "*"}
            assert workers[0].put("/models/m", json=other, headers=headers).status_code == 201
        else:
            workers[0].delete("/models/m")
            workers[0].put("/models/m", json=SPEC)
        assert learn(workers[1], "s; from=0; to=1; first", 1)["seq"] == 1
        assert listed(workers[1])["s"]["next"] == listed(workers[0])["s"]["next"] == 2
        workers[0].delete("/models/m")
        answer = workers[1].post(
            "/models/m/learn", content=lines(1), headers={"dualstream-source": "s; from=2; to=3"}
        )
        assert_problem(answer, 404, "unknown-model")


def test_a_paused_model_keeps_the_rows_and_moves_the_cursor(client):
    guard = {"mode": "pause", "every": 2, "after": 10, "patience": 1}
    client.put("/models/g", json=SPEC | {"guard": guard})
    rows = [{"x": [2, 0, 0, 0, 0], "y": int(n < 30)} for n in range(40)]
    client.post("/models/g/learn", json={"samples": rows})
    headers = {"dualstream-source": "s; from=0; to=1; first"}
    got = client.post("/models/g/learn", json={"samples": rows[:2]}, headers=headers).json()
    assert (got["count"], got["learned"], got["rejected"]) == (2, 0, 2)
    assert got["errors"][0]["reason"].startswith("paused") and got["source"]["next"] == 2
    got = client.post("/models/g/learn", json={"samples": rows[:2]}, headers=headers).json()
    assert (got["duplicate"], got["count"]) == (True, 0)


def test_the_cursor_is_no_part_of_the_state(serve, tmp_path):
    """A batch of a source gives the same state as its rows without one."""
    digests = []
    for number, header in enumerate(({}, {"dualstream-source": "s; from=0; to=2; first"})):
        client = serve(store=f"sqlite:///{tmp_path / str(number)}.db")
        client.put("/models/m", json=SPEC)
        headers = {"content-type": NDJSON, **header}
        client.post("/models/m/learn", content=lines(1, 2, 3), headers=headers)
        digests.append(client.get("/models/m?digest=true").json()["state_digest"])
    assert digests[0] == digests[1]


def test_a_model_has_a_limited_number_of_sources(client, monkeypatch):
    monkeypatch.setattr(sources, "MAX_SOURCES", 2)
    learn(client, "a; from=0; to=0; first", 1)
    learn(client, "b; from=0; to=0; first", 1)
    refused = learn(client, "c; from=0; to=0; first", 1, status=409)
    assert refused["type"] == "/problems/too-many-sources"
    answer = client.put("/models/m/sources/c", json={"next": 1})
    assert_problem(answer, 409, "too-many-sources")
    learn(client, "a; from=1; to=1", 1)
    client.delete("/models/m/sources/b")
    assert learn(client, "c; from=0; to=0; first", 1)["seq"] == 4


def test_of_two_workers_with_the_same_batches_one_learns_each(serve, store):
    workers = [serve(store=store), serve(store=store)]
    workers[0].put("/models/m", json=SPEC)
    assert workers[1].get("/models/m").status_code == 200

    def read(client) -> list[bool]:
        answers = []
        for first in range(0, 60, 3):
            source = f"s; from={first}; to={first + 2}" + "; first" * (first == 0)
            answers.append(learn(client, source, first, first + 1, first + 2)["duplicate"])
        return answers

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(read, workers * 2))
    assert [sorted(of_batch) for of_batch in zip(*answers, strict=True)] == [
        [False, True, True, True]
    ] * 20
    assert loaded(store).learner.samples == 60
    assert listed(workers[1])["s"]["rows"] == 60


def test_an_append_of_unknown_outcome_is_not_done_twice(client, store):
    """Whatever the store answers, the batch is learned once and its cursor moves once."""
    learn(client, "s; from=0; to=0; first", 0)
    committer = client.app._registry.find("m").committer
    journal, first, statuses = committer._journal, 1, []
    for faults in itertools.product(Fault, repeat=2):
        committer._journal = FaultyJournal(journal, faults)
        headers = {"content-type": NDJSON, "dualstream-source": f"s; from={first}; to={first}"}
        for _ in range(3):
            answer = client.post("/models/m/learn", content=lines(first), headers=headers)
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                break
        assert answer.json()["source"]["next"] == first + 1
        first += 1
    assert set(statuses) == {200, 503}
    assert listed(client)["s"]["rows"] == first
    assert loaded(store).learner.samples == first


@pytest.mark.parametrize("forgets", [False, True])
def test_an_append_whose_retries_end_is_a_duplicate_when_sent_again(client, store, forgets):
    learn(client, "s; from=0; to=0; first", 0)
    committer = client.app._registry.find("m").committer
    journal, committer._append_timeout_s = committer._journal, 0.0
    committer._journal = FaultyJournal(journal, [Fault.UNANSWERED])
    refused = learn(client, "s; from=1; to=2", 1, 2, status=503)
    assert (refused["type"], refused["outcome"]) == ("/problems/outcome-unknown", "unknown")
    assert "Dualstream-Source" in refused["detail"]
    if forgets:  # another append moves the cursor before the repeat
        learn(client, "s; from=3; to=3", 3)
    got = learn(client, "s; from=1; to=2", 1, 2)
    assert (got["duplicate"], got["seq"]) == (True, 3 + forgets)
    assert loaded(store).learner.samples == 3 + forgets


@pytest.mark.parametrize("seed", range(3))
def test_answers_match_a_model_of_the_contract(serve, store, seed):
    """Random batches to two workers, against the contract written down in ten lines."""
    chance = random.Random(seed)
    workers = [serve(store=store), serve(store=store)]
    workers[0].put("/models/m", json=SPEC)
    cursors: dict[str, int | str] = {}
    rows, got = 0, {"learned": 0, "duplicate": 0, "unknown": 0, 409: 0}
    for _ in range(150):
        client, name = chance.choice(workers), chance.choice("ab")
        cursor = cursors.get(name)
        if chance.random() < 0.1:
            if chance.random() < 0.5:
                cursors[name] = chance.choice([3, "3"])
                body = {"next": cursors[name]}
                assert client.put(f"/models/m/sources/{name}", json=body).status_code == 200
            else:
                status = client.delete(f"/models/m/sources/{name}").status_code
                assert status == (404 if cursors.pop(name, None) is None else 204)
            continue
        start: int | str
        if chance.random() < 0.3:
            start, following = chance.sample("123", 2)
            header = f'{name}; from="{start}"; next="{following}"'
            is_learned = cursor == following
        else:
            near = cursor if isinstance(cursor, int) and chance.random() < 0.7 else 0
            start = max(0, near + chance.choice([0, 0, 0, 0, -1, -2, 1]))
            to = start + chance.randrange(3)
            following, header = to + 1, f"{name}; from={start}; to={to}"
            is_learned = isinstance(cursor, int) and to < cursor
        count, is_first = chance.randrange(4), chance.random() < 0.5
        header += "; first" * is_first
        expected: int | str = 409
        if cursor is None and not is_first:
            expected = "unknown"
        elif cursor is None or cursor == start:
            expected, cursors[name], rows = "learned", following, rows + count
        elif is_learned:
            expected = "duplicate"
        got[expected] += 1
        status = 409 if expected in (409, "unknown") else 200
        answer = learn(client, header, *range(count), status=status)
        if expected == "unknown":
            assert (answer["type"], answer["source"]) == ("/problems/unknown-source", name)
        elif expected == 409:
            assert answer["cursor"] == cursors[name]
        else:
            assert answer["duplicate"] == (expected == "duplicate")
            assert answer["seq"] == rows
            assert answer["source"]["next"] == cursors[name]
    assert min(got.values()) > 5, got
    assert {name: one["next"] for name, one in listed(chance.choice(workers)).items()} == cursors
    assert loaded(store).learner.samples == rows
