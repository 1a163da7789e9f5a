"""A portfolio of two members."""

import numpy as np

FEATURES = {"kind": "indexed", "dim": 5}
MEMBERS = [
    {"name": "dual", "algorithm": "dual_ascent", "rho": 0.01},
    {"name": "steps", "algorithm": "sgd"},
]
PAIR = {"algorithm": "portfolio", "features": FEATURES, "members": MEMBERS, "retain": 50}
SPARSE = {"name": "sparse", "algorithm": "rda"}


def learn(client, rows: int, seed: int = 1):
    x = np.random.default_rng(seed).standard_normal((rows, 5))
    body = {"x": x.tolist(), "y": [int(row[0] + row[1] > 0) for row in x]}
    answer = client.post("/models/m/learn", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def names(client) -> list[str]:
    return [member["name"] for member in client.get("/models/m/members").json()["members"]]
