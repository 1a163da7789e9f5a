"""Groups of a history are proposed for keys that return; a specification with them is valid."""

import json
import random
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from dualstream.service.cli import app
from dualstream.service.features.infer.propose import propose
from dualstream.service.features.infer.sample import Sample
from dualstream.solvers import resolve_spec
from dualstream.solvers.history.spec import column_count
from tests.service.cli.inferred_tables import FILES, RIGHT, rows_of, table
from tests.service.codecs.support import NDJSON

START = datetime(2026, 1, 1, tzinfo=UTC)


def payments(seed=1, n=1200, step=120, **more):
    """Card payments in the order of their times; `more` are columns, as functions of the row."""
    rng = random.Random(seed)
    at, rows = START, []
    for number in range(n):
        at += timedelta(seconds=round(rng.expovariate(1 / step)))
        row = {
            "at": at.isoformat(),
            "card": f"c{rng.randrange(300)}",
            "shop_id": rng.randrange(9),
            "channel": rng.choice(["web", "pos"]),
            "items": rng.randrange(40),
            "amount": round(rng.gauss(50, 10), 2),
            "fraud": int(rng.random() < 0.1),
        }
        rows.append(row | {name: of(number, rng) for name, of in more.items()})
    return rows


def proposed(rows, **options):
    return propose(Sample(rows), history=True, **options)


def test_a_proposal_with_a_history_is_accepted_and_learns_its_sample(client, subtests):
    samples = {f"payments {seed}": (payments(seed), None) for seed in range(3)}
    for seed in range(10):
        columns, label = table(seed)
        columns["time"] = sorted(columns["time"], key=lambda at: at or "")
        if seed % 2:
            columns["epoch_ts"] = sorted(columns["epoch_ts"], key=lambda at: at or 0)
        samples[f"table {seed}"] = rows_of(columns), label
    for name, make in FILES.items():
        samples[name] = make(), "Appliances" if name == "house_power" else None
    with_groups = 0
    for name, (rows, label) in samples.items():
        with subtests.test(name):
            result = client.post(
                "/columns/infer",
                content="\n".join(map(json.dumps, rows)),
                headers={"content-type": NDJSON},
                params={"history": True} | ({"label": label} if label else {}),
            ).json()
            assert client.put("/models/m", json=result["spec"]).status_code == 201
            learned = client.post("/models/m/learn", json=rows).json()
            assert learned["learned"] == len(rows), learned["errors"][:2]
            client.delete("/models/m")
            groups = [one["group"] for one in result["history"]]
            assert result["spec"].get("history", []) == groups
            with_groups += bool(groups)
    assert with_groups >= 10


def test_keys_that_return_are_proposed_with_time_and_number():
    proposal = proposed(payments())
    card, shop = (one.group for one in proposal.groups)
    stats = ["since", "count", "difference", "label_mean"]
    # A card pays every 10 hours and a shop every 18 minutes; the median of their gaps is less.
    shared = {"time": "at", "of": "amount", "stats": stats}
    assert card == {"by": "card", **shared, "half_life": ["6h", "3d", "30d"]}
    assert shop == {"by": "shop_id", **shared, "half_life": ["10m", "2h", "1d"]}
    types = proposal.spec["columns"]["types"]
    assert (types["card"], types["shop_id"]) == ("ignore", "category")
    assert "no feature of its own" in proposal.choices["card"].reason
    assert "75% of the rows have one from before" in proposal.groups[0].reason


def test_a_history_is_no_part_of_the_specification_unless_it_is_requested(client, tmp_path):
    rows = payments()
    file = tmp_path / "rows.ndjson"
    file.write_text("\n".join(map(json.dumps, rows)))
    plain, with_history = (
        CliRunner().invoke(app, ["infer", str(file), *more]) for more in ([], ["--history"])
    )
    assert "history" not in json.loads(plain.stdout)
    assert json.loads(plain.stdout)["columns"]["types"]["card"] == "category"
    assert "take it with --history" in plain.stderr and '{"by":"card"' in plain.stderr
    spec = json.loads(with_history.stdout)
    assert [group["by"] for group in spec["history"]] == ["card", "shop_id"]
    assert '{"by":"card"' in with_history.stderr and "--history" not in with_history.stderr
    for query, printed in ({}, plain), ({"history": True}, with_history):
        result = client.post(
            "/columns/infer",
            content=file.read_bytes(),
            headers={"content-type": NDJSON},
            params=query,
        ).json()
        assert result["spec"] == json.loads(printed.stdout)
        assert [one["group"]["by"] for one in result["history"]] == ["card", "shop_id"]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            lambda: [{k: v for k, v in row.items() if k != "at"} for row in payments()],
            "no column of",
        ),
        (lambda: random.Random(0).sample(payments(), 1200), "not in the order of at"),
        (
            lambda: payments(at=lambda i, _: (START + timedelta(3650) + i * DAY).isoformat()),
            "order",
        ),
        (lambda: payments(card=lambda i, _: f"c{i}", shop_id=lambda i, _: i % 5 / 2), "return"),
        (lambda: payments(at=lambda i, _: START.isoformat()), "there is no column of times"),
        (lambda: payments()[:15], "return"),
    ],
)
def test_without_groups_the_reason_is_a_warning(rows, reason):
    proposal = proposed(rows())
    assert proposal.groups == [] and "history" not in proposal.spec
    assert any(one.startswith("no history: ") and reason in one for one in proposal.warnings)
    assert all("no history" not in one for one in propose(Sample(rows())).warnings)


DAY = timedelta(days=1)


def test_parts_of_times_and_few_values_are_no_keys():
    more = {
        "month": lambda i, rng: f"m{rng.randrange(12)}",
        "city": lambda i, rng: f"t{rng.randrange(12)}",
        "grade": lambda i, rng: rng.choice("abcdef"),
        "device": lambda i, rng: rng.choice("xyz"),
    }
    keys = [one.key for one in proposed(payments(**more)).groups]
    assert keys == ["card", "shop_id", "device", "city"]


def test_groups_have_at_most_64_columns():
    names = {f"k{one}_id": lambda i, rng: rng.randrange(20) for one in range(8)}
    for label, task in ((lambda i, rng: rng.choice("abcd"), "multiclass"), (None, "binary")):
        rows = payments(**names, **({} if label is None else {"fraud": label}))
        proposal = proposed(rows)
        spec = resolve_spec(proposal.spec)
        assert (spec["task"], len(proposal.groups)) == (task, 4)
        assert column_count(spec["history"], task) <= 64


def test_a_group_whose_column_the_rows_have_is_left_out():
    taken = {"card.since": lambda i, rng: rng.random()}
    proposal = proposed(payments(**taken))
    assert [one.key for one in proposal.groups] == ["shop_id"]
    assert resolve_spec(proposal.spec)["columns"]["types"]["card"] == "category"


def test_types_without_a_history_stay(subtests):
    for seed in range(3):
        columns, label = table(seed)
        columns["time"] = sorted(columns["time"], key=lambda at: at or "")
        kinds = {n: c.kind for n, c in propose(Sample(rows_of(columns)), label).choices.items()}
        assert kinds == RIGHT | {label: "label", "event_id": "id"}
