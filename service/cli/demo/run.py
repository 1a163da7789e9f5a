"""Demo run: starts a server on a temporary store, streams Adult, compares with baselines."""

import math
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from dualstream.service.cli.demo.adult import adult_samples
from dualstream.service.cli.demo.server_process import ServerProcess

MODEL = "adult"
ROWS_PER_REQUEST = 50
REPORT_EVERY = 4000
TIMEOUT_S = 120.0
# Slow enough to watch: the rows take 13 s.
WATCHED_ROWS_PER_S = 2500.0
ROWS_TO_PREDICT = 3
WEIGHTS_SHOWN = 8
CERTIFIED = "dual-30"


def run_demo(
    console: Console,
    report: Callable[[dict[str, float]], None] | None = None,
    stay: bool = False,
    rows_per_s: float = math.inf,
) -> int:
    """Run the demo; returns exit code 0 if the model makes fewer mistakes than both baselines.

    `report` is called with the three error rates at the end. With `stay` the server runs until an
    interrupt. Sends at most `rows_per_s`.
    """
    samples = list(adult_samples())
    with tempfile.TemporaryDirectory(prefix="dualstream-demo-") as folder:
        store = f"sqlite:///{Path(folder) / 'demo.db'}"
        with (
            ServerProcess(store) as server,
            httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as client,
        ):
            for line in server.said:
                console.print(line, style="dim", highlight=False, soft_wrap=True)
            if stay:
                console.print(f"Live dashboard: {server.url}/", soft_wrap=True)
            console.print(
                f"PUT /models/{MODEL} without a body: a portfolio of many learners",
                style="dim",
                soft_wrap=True,
            )
            client.put(f"/models/{MODEL}").raise_for_status()
            console.print(f"a sample: {_shown(samples[0])}", style="dim", soft_wrap=True)
            _stream(console, client, samples, rows_per_s)
            _predict(console, client, samples)
            heaviest = _members(console, client)
            _weights(console, client, heaviest)
            _certificate(console, client)
            exit_code = _outcome(console, client, report)
            if stay:
                console.print(
                    f"\nThe dashboard is at {server.url}/#/models/{MODEL} until Ctrl-C.",
                    soft_wrap=True,
                )
                with suppress(KeyboardInterrupt):
                    _wait_forever()
            return exit_code


def _wait_forever() -> None:
    threading.Event().wait()


def _shown(sample: dict[str, Any]) -> str:
    first = ", ".join(f'"{name}": "{value}"' for name, value in list(sample["x"].items())[:4])
    return f'{{"x": {{{first}, ...}}, "y": {sample["y"]}}}'


def _stream(
    console: Console, client: httpx.Client, samples: list[dict[str, Any]], rows_per_s: float
) -> None:
    bar = Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    console.print("    rows   rows/s   error: model   majority class   last label")
    with bar:
        task = bar.add_task("learning", total=len(samples))
        began, reported = time.perf_counter(), 0
        due = began
        for first in range(0, len(samples), ROWS_PER_REQUEST):
            body = {"samples": samples[first : first + ROWS_PER_REQUEST]}
            time.sleep(max(0.0, due - time.perf_counter()))
            due += ROWS_PER_REQUEST / rows_per_s
            done = _learn(client, body, str(first))["seq"]
            bar.update(task, completed=done)
            if done // REPORT_EVERY > reported // REPORT_EVERY or done == len(samples):
                now = time.perf_counter()
                _report(console, client, done, (done - reported) / (now - began))
                began, reported = time.perf_counter(), done


def _learn(client: httpx.Client, body: dict[str, Any], key: str) -> dict[str, Any]:
    """Learn a body once. A server on a busy machine may refuse it, and says when to repeat it."""
    headers = {"Idempotency-Key": key}
    while True:
        answer = client.post(f"/models/{MODEL}/learn", json=body, headers=headers)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            return dict(answer.raise_for_status().json())
        time.sleep(float(answer.headers.get("retry-after", 1)))


def _errors(client: httpx.Client) -> tuple[float, float, float]:
    """Progressive error of the model, of the majority class and of the last label."""
    found = client.get(f"/models/{MODEL}/metrics").raise_for_status().json()["since_start"]
    baselines = found["baselines"]
    return (
        found["error_rate"],
        baselines["most_frequent"]["error_rate"],
        baselines["last_label"]["error_rate"],
    )


def _report(console: Console, client: httpx.Client, done: int, rows_per_s: float) -> None:
    model, majority, last = _errors(client)
    console.print(
        f"{done:8,} {rows_per_s:8,.0f} {model:14.2%} {majority:16.2%} {last:12.2%}", highlight=False
    )


def _predict(console: Console, client: httpx.Client, samples: list[dict[str, Any]]) -> None:
    console.print("\nGET /predict for the last rows:")
    for sample in samples[-ROWS_TO_PREDICT:]:
        query = {f"x.{name}": value for name, value in sample["x"].items()}
        found = client.get(f"/models/{MODEL}/predict", params=query).raise_for_status().json()
        console.print(
            f"  label {sample['y']:+d}  predicted {found['label']}  "
            f"score {found['score']:+.3f}  probability {found['probability']:.3f}",
            highlight=False,
        )


def _members(console: Console, client: httpx.Client) -> str:
    """Print the members by weight; returns the linear one with the largest weight."""
    found = client.get(f"/models/{MODEL}/members").raise_for_status().json()["members"]
    ranked = sorted(found, key=lambda member: -member["weight"])
    console.print("\nGET /members, by weight:")
    console.print("  share   error   log-loss   member")
    for member in ranked:
        since = member["since_start"]
        console.print(
            f"{member['weight']:7.1%} {since['error_rate']:7.2%} {since['loss']:10.4f}   "
            f"{member['name']}",
            highlight=False,
        )
    linear = [one for one in ranked if one["spec"].get("kind") not in (None, "prior", "stack")]
    return str(linear[0]["name"])


def _weights(console: Console, client: httpx.Client, member: str) -> None:
    requested: dict[str, str | int] = {"top": WEIGHTS_SHOWN, "member": member}
    found = client.get(f"/models/{MODEL}/weights", params=requested).raise_for_status().json()
    console.print(f"\nGET /weights of {member}, the largest (after scaling):")
    for weight in found["weights"]:
        console.print(f"{weight['weight']:+10.4f}   {weight['name']}", highlight=False)


def _certificate(console: Console, client: httpx.Client) -> None:
    requested = {"member": CERTIFIED}
    found = client.get(f"/models/{MODEL}/certificate", params=requested).raise_for_status().json()
    console.print(
        f"\nGET /certificate of {CERTIFIED}, estimated on {found['rows']:,} retained rows: primal "
        f"{found['primal']:.4f}, dual {found['dual']:.4f}, gap {found['gap']:.4f} "
        f"({found['relative_gap']:.1%})",
        highlight=False,
        soft_wrap=True,
    )


def _outcome(
    console: Console, client: httpx.Client, report: Callable[[dict[str, float]], None] | None
) -> int:
    model, majority, last = _errors(client)
    if report is not None:
        report({"error_rate": model, "most_frequent": majority, "last_label": last})
    if model < majority and model < last:
        console.print("\n[green]The model beats both baselines.[/green]")
        return 0
    console.print("\n[red]The model does not beat both baselines.[/red]")
    return 1
