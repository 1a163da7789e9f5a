"""Uploads: long bodies, one after the other over one connection."""

import http.client
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Upload:
    """Result of an upload: wall seconds, CPU seconds of the sender, the answers."""

    seconds: float
    cpu_s: float
    answers: list[dict[str, Any]]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Last seq and row count of each answer."""
        return [(answer["seq"], answer["count"]) for answer in self.answers]

    @property
    def counted(self) -> int:
        return sum(answer["count"] for answer in self.answers)

    @property
    def loss(self) -> float:
        """Mean loss of the rows, each scored before its own update."""
        total: float = sum(answer["loss"] * answer["learned"] for answer in self.answers)
        learned: int = sum(answer["learned"] for answer in self.answers)
        return total / learned


def upload(url: str, target: str, content_type: str, bodies: Sequence[bytes]) -> Upload:
    """Post all bodies in turn. Raises RuntimeError for a refusal."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    answers: list[dict[str, Any]] = []
    began, cpu = time.perf_counter(), time.process_time()
    for body in bodies:
        connection.request("POST", target, body, {"Content-Type": content_type})
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"refused: {response.status} {text[:500]!r}")
        answers.append(json.loads(text))
    done = Upload(time.perf_counter() - began, time.process_time() - cpu, answers)
    connection.close()
    return done
