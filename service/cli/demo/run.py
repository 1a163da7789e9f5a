"""Demo run: starts a server on a temporary store, streams Adult, compares with baselines."""

import math
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from dualstream.client import Client
from dualstream.service.cli.demo.adult import adult_samples
from dualstream.service.cli.demo.server_process import ServerProcess

MODEL = "adult"
ROWS_PER_REQUEST = 50
REPORT_EVERY = 4000
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
        with ServerProcess(store) as server, Client(server.url) as client:
            for line in server.said:
                console.print(line, style="dim", highlight=False, soft_wrap=True)
            if stay:
                console.print(f"Live dashboard: {server.url}/", soft_wrap=True)
            console.print(
                f"PUT /models/{MODEL} without options: a portfolio of many learners",
                style="dim",
                soft_wrap=True,
            )
            client.create(MODEL)
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
    console: Console, client: Client, samples: list[dict[str, Any]], rows_per_s: float
) -> None:
    bar = Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    console.print("    rows   rows/s   error: model   majority class   last label")
    with bar:
        task = bar.add_task("learning", total=len(samples))
        began, reported = time.perf_counter(), 0
        due = began
        for first in range(0, len(samples), ROWS_PER_REQUEST):
            block = samples[first : first + ROWS_PER_REQUEST]
            time.sleep(max(0.0, due - time.perf_counter()))
            due += ROWS_PER_REQUEST / rows_per_s
            done = client.learn_iter(MODEL, block).seq
            bar.update(task, completed=done)
            if done // REPORT_EVERY > reported // REPORT_EVERY or done == len(samples):
                now = time.perf_counter()
                _report(console, client, done, (done - reported) / (now - began))
                began, reported = time.perf_counter(), done


def _errors(client: Client) -> tuple[float, float, float]:
    """Progressive error of the model, of the majority class and of the last label."""
    totals = client.metrics(MODEL)["since_start"]
    baselines = totals["baselines"]
    return (
        totals["error_rate"],
        baselines["most_frequent"]["error_rate"],
        baselines["last_label"]["error_rate"],
    )


def _report(console: Console, client: Client, done: int, rows_per_s: float) -> None:
    model, majority, last = _errors(client)
    console.print(
        f"{done:8,} {rows_per_s:8,.0f} {model:14.2%} {majority:16.2%} {last:12.2%}", highlight=False
    )


def _predict(console: Console, client: Client, samples: list[dict[str, Any]]) -> None:
    console.print("\nPOST /predict for the last rows:")
    for sample in samples[-ROWS_TO_PREDICT:]:
        prediction = client.predict(MODEL, sample["x"])
        console.print(
            f"  label {sample['y']:+d}  predicted {prediction.label}  "
            f"score {prediction.score:+.3f}  probability {prediction.probability:.3f}",
            highlight=False,
        )


def _members(console: Console, client: Client) -> str:
    """Print the members by weight; returns the linear one with the largest weight."""
    ranked = sorted(client.members(MODEL).members, key=lambda member: -member.weight)
    console.print("\nGET /members, by weight:")
    console.print("  share   error   log-loss   member")
    for member in ranked:
        since = member.since_start
        console.print(
            f"{member.weight:7.1%} {since.error_rate:7.2%} {since.loss:10.4f}   {member.name}",
            highlight=False,
        )
    linear = [one for one in ranked if one.spec.get("kind") not in (None, "prior", "stack")]
    return linear[0].name


def _weights(console: Console, client: Client, member: str) -> None:
    answer = client.weights(MODEL, top=WEIGHTS_SHOWN, member=member)
    console.print(f"\nGET /weights of {member}, the largest (after scaling):")
    for one in answer.weights:
        console.print(f"{one.weight:+10.4f}   {one.name}", highlight=False)


def _certificate(console: Console, client: Client) -> None:
    certificate = client.certificate(MODEL, member=CERTIFIED)
    console.print(
        f"\nGET /certificate of {CERTIFIED}, estimated on {certificate.rows:,} retained rows: "
        f"primal {certificate.primal:.4f}, dual {certificate.dual:.4f}, gap {certificate.gap:.4f} "
        f"({certificate.relative_gap:.1%})",
        highlight=False,
        soft_wrap=True,
    )


def _outcome(
    console: Console, client: Client, report: Callable[[dict[str, float]], None] | None
) -> int:
    model, majority, last = _errors(client)
    if report is not None:
        report({"error_rate": model, "most_frequent": majority, "last_label": last})
    if model < majority and model < last:
        console.print("\n[green]The model beats both baselines.[/green]")
        return 0
    console.print("\n[red]The model does not beat both baselines.[/red]")
    return 1
