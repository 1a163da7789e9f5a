"""`dualstream replay`: states of the past and of other specs, from the kept journal."""

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient
from typer.testing import CliRunner

from dualstream.service import cli
from tests.service.features.versions.support import back, learn, settled, take
from tests.service.replay.replay_support import got, refused, replayed, state
from tests.service.replica.snapshot_damage import SPEC, Kept, run


def test_states_of_the_past_are_computed_again(serve, store):
    client = serve(store=store, snapshot_every=20)
    client.put("/models/m", json=SPEC)
    states = {}
    for n in range(0, 63, 7):
        learn(client, n, n + 7)
        settled(client)
        states[n + 7] = state(client)
    take(client, name="v")
    back(client, seq=49)
    states[64] = state(client)

    async def places(kept: Kept) -> Any:
        return await kept.journal.get("m"), await kept.journal.snapshots(*kept.where)

    before = run(store, places)
    for seq, from_seq in ((49, 43), (63, 0), (64, 64)):
        result = replayed(store, "--until", str(seq))
        assert got(result) == states[seq]
        assert (result["seq"], result["from_seq"]) == (seq, from_seq)
    assert got(replayed(store)) == states[64] == state(client)
    assert "from seq 42 to 64" in refused(store, "--until", "41")
    assert run(store, places) == before
    said = CliRunner().invoke(cli.app, ["replay", "m", "--store", store, "--until", "49"]).output
    assert said.startswith("m at seq 49, from records 43 to 49\n") and states[49][0] in said


def test_another_spec_learns_the_same_journal(serve, store):
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    client.put("/models/other", json=SPEC | {"rho": 0.5, "window": {"kind": "sliding"}})
    for n in range(0, 60, 20):
        learn(client, n, n + 20)
    rows = client.app._registry.find("m").replica.learner.samples
    changes = ("--set", "rho=0.5", "--set", "window.kind=sliding")
    result = replayed(store, *changes)
    assert (result["samples"], result["from_seq"], result["spec"]["rho"]) == (rows, 1, 0.5)
    # It is what a model of this spec learns from the same rows.
    for n in range(0, 60, 20):
        learn_other(client, n, n + 20)
    assert got(result) == state(client, "other")
    part = replayed(store, *changes, "--until", "33")
    assert part["seq"] == part["samples"] == 33
    # A rollback names a state of the model's own spec.
    take(client, name="v")
    back(client, version="v")
    result = replayed(store, *changes)
    assert (result["seq"], result["left_out_rollbacks"]) == (61, 1)
    assert got(result) == state(client, "other")


def learn_other(client: TestClient, first: int, last: int) -> None:
    class Other:
        """Sends to another model what `learn` sends to the first."""

        def post(self, _: str, **options: Any) -> Any:
            return client.post("/models/other/learn", **options)

    learn(Other(), first, last)  # type: ignore[arg-type]


def test_what_a_trimmed_journal_can_tell_is_said(serve, store):
    client = serve(store=store, snapshot_every=20)
    client.put("/models/m", json=SPEC)
    for n in range(0, 60, 10):
        learn(client, n, n + 10)
        settled(client)
    result = replayed(store, "--set", "rho=0.5")
    assert (result["from_seq"], result["samples"], result["seq"]) == (41, 20, 60)
    said = CliRunner().invoke(cli.app, ["replay", "m", "--store", store, "--set", "rho=0.5"]).output
    assert "the journal starts at seq 41; earlier rows are not learned" in said


def test_a_replay_of_no_record_says_so(serve, store):
    serve(store=store).put("/models/m", json=SPEC)
    for case in ((), ("--set", "rho=0.5")):
        done = CliRunner().invoke(cli.app, ["replay", "m", "--store", store, *case])
        assert done.output.startswith("m at seq 0, without records\nsamples 0, ")


def test_what_cannot_be_replayed_is_refused_with_the_reason(serve, store, tmp_path: Path):
    client = serve(store=store)
    client.put("/models/m", json=SPEC)
    learn(client, 0, 5)
    assert "no model 'x'" in refused(store, model="x")
    for case in ((), ("--set", "rho=0.5")):
        assert "its journal ends at seq 5" in refused(store, "--until", "6", *case)
    refused(store, "--until", "-1")
    assert "PATH=VALUE" in refused(store, "--set", "rho")
    assert "rho" in refused(store, "--set", "rho=-1")
    assert "beat" in refused(store, "--set", "window.beat=1")
    assert "got 2" in refused(store, "--set", "window.kind=exponential", "--set", "window.beta=2")
    assert "features cannot change so" in refused(store, "--set", "features.dim=6")
    missing = tmp_path / "missing.db"
    assert "no store at" in refused(f"sqlite:///{missing}")
    assert not missing.exists()
