"""A guarded model and rows that pause it."""

from typing import Any

from tests.service.conftest import SPEC
from tests.support import until

FIELDS = {"every": 10, "patience": 2, "history": 1000, "after": 50}
GUARDED = SPEC | {"guard": {"mode": "pause", **FIELDS}}


def samples(first: int, last: int, bad: bool = False, ids: bool = False) -> list[dict[str, Any]]:
    """Rows first .. last - 1 of an endless stream; bad ones are longer and have the other label."""
    results = []
    for n in range(first, last):
        x = [((n * k * 7919) % 101 - 50) / (5 if bad else 25) for k in range(1, 6)]
        sample = {"x": x, "y": int((x[0] + x[1] > 0) != bad)}
        results.append(sample | ({"id": f"s{n}"} if ids else {}))
    return results


def learn(client: Any, rows: list[dict[str, Any]], model: str = "m", **more: Any) -> dict:
    answer = client.post(f"/models/{model}/learn", json={"samples": rows}, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def view(client: Any, model: str = "m") -> dict:
    return client.get(f"/models/{model}?digest=true").json()


def paused(client: Any, model: str = "m") -> dict:
    """Where it is paused, once the state has gone back."""
    shown: list[dict] = []

    def is_settled() -> bool:
        shown.append(view(client, model).get("paused") or {})
        return shown[-1].get("is_settled", False)

    until(is_settled)
    return shown[-1]
