"""Starts a server on a store of its own, streams Adult through it, and judges the result."""

import math
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from dualstream.service.cli.demo.adult import adult_samples
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.server import compile_kernels as kernels

MODEL = "adult"
ROWS_PER_REQUEST = 50
REPORT_EVERY = 4000
# The first model of a family on a machine waits for its kernels.
FIRST_COMPILATION_S = 120.0
# Slow enough to be looked at: the rows take 13 s.
WATCHED_ROWS_PER_S = 2500.0
# A server that has its kernels is ready before.
AHEAD_AFTER_S = 2.5
# What its first model needs, and then what itself comes to last.
COMPILED_AHEAD = (
    "dualstream.solvers.portfolio.weighting_kernels",
    "dualstream.solvers.portfolio.fused_kernels",
    "dualstream.solvers.portfolio.retained_rows",
    "dualstream.solvers.evaluation.late_label_scores",
    "dualstream.solvers.evaluation.progressive",
    "dualstream.solvers.evaluation.drift.detectors",
)
ROWS_TO_PREDICT = 3
WEIGHTS_SHOWN = 8
CERTIFIED = "dual-30"


def run_demo(
    console: Console,
    tell: Callable[[dict[str, float]], None] | None = None,
    stay: bool = False,
    rows_per_s: float = math.inf,
) -> int:
    """The exit code: 0 when the model makes fewer mistakes than both baselines.

    `tell` is told the three error rates in the end. With `stay` the server is there until an
    interrupt. No more than `rows_per_s` are sent.
    """
    samples = list(adult_samples())
    with tempfile.TemporaryDirectory(prefix="dualstream-demo-") as folder:
        store = f"sqlite:///{Path(folder) / 'demo.db'}"
        with (
            _compiling_ahead() as ahead,
            ServerProcess(store) as server,
            httpx.Client(base_url=server.url, timeout=FIRST_COMPILATION_S) as client,
        ):
            ahead.cancel()
            for line in server.said:
                console.print(line, style="dim", highlight=False, soft_wrap=True)
            if stay:
                console.print(f"Its page, live: {server.url}/", soft_wrap=True)
            console.print(
                f"PUT /models/{MODEL} with no body: eight learners and the prior, combined; "
                "the first time, kernels are compiled",
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
            exit_code = _verdict(console, client, tell)
            if stay:
                console.print(
                    f"\nIts page is at {server.url}/#/models/{MODEL} until Ctrl-C.", soft_wrap=True
                )
                with suppress(KeyboardInterrupt):
                    _wait_for_ever()
            return exit_code


@contextmanager
def _compiling_ahead() -> Iterator[threading.Timer]:
    """The model's kernels are compiled beside the server's own, where these take long at all."""
    begun: list[subprocess.Popen[bytes]] = []
    late = threading.Timer(AHEAD_AFTER_S, lambda: begun.append(kernels.begin(COMPILED_AHEAD)))
    late.start()
    try:
        yield late
    finally:
        late.cancel()
        late.join()
        for process in begun:
            process.kill()
            process.wait()


def _wait_for_ever() -> None:
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
            answer = client.post(f"/models/{MODEL}/learn", json=body)
            done = answer.raise_for_status().json()["seq"]
            bar.update(task, completed=done)
            if done // REPORT_EVERY > reported // REPORT_EVERY or done == len(samples):
                now = time.perf_counter()
                _report(console, client, done, (done - reported) / (now - began))
                began, reported = time.perf_counter(), done


def _errors(client: httpx.Client) -> tuple[float, float, float]:
    """Progressive error of the model, of the majority class and of the last label."""
    told = client.get(f"/models/{MODEL}/metrics").raise_for_status().json()["since_start"]
    baselines = told["baselines"]
    return (
        told["error_rate"],
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
        told = client.get(f"/models/{MODEL}/predict", params=query).raise_for_status().json()
        console.print(
            f"  label {sample['y']:+d}  predicted {told['label']}  "
            f"score {told['score']:+.3f}  probability {told['probability']:.3f}",
            highlight=False,
        )


def _members(console: Console, client: httpx.Client) -> str:
    """Show who has which share in the predictions; the member that has the largest."""
    told = client.get(f"/models/{MODEL}/members").raise_for_status().json()["members"]
    ranked = sorted(told, key=lambda member: -member["weight"])
    console.print("\nGET /members, by their share in what is served:")
    console.print("  share   error   log-loss   member")
    for member in ranked:
        since = member["since_start"]
        console.print(
            f"{member['weight']:7.1%} {since['error_rate']:7.2%} {since['loss']:10.4f}   "
            f"{member['name']}",
            highlight=False,
        )
    return str(next(member["name"] for member in ranked if member["name"] != "prior"))


def _weights(console: Console, client: httpx.Client, member: str) -> None:
    asked: dict[str, str | int] = {"top": WEIGHTS_SHOWN, "member": member}
    told = client.get(f"/models/{MODEL}/weights", params=asked).raise_for_status().json()
    console.print(f"\nGET /weights of {member}, the largest (behind its scaling):")
    for weight in told["weights"]:
        console.print(f"{weight['weight']:+10.4f}   {weight['name']}", highlight=False)


def _certificate(console: Console, client: httpx.Client) -> None:
    asked = {"member": CERTIFIED}
    told = client.get(f"/models/{MODEL}/certificate", params=asked).raise_for_status().json()
    console.print(
        f"\nGET /certificate of {CERTIFIED}, estimated on {told['rows']:,} retained rows: primal "
        f"{told['primal']:.4f}, dual {told['dual']:.4f}, gap {told['gap']:.4f} "
        f"({told['relative_gap']:.1%})",
        highlight=False,
        soft_wrap=True,
    )


def _verdict(
    console: Console, client: httpx.Client, tell: Callable[[dict[str, float]], None] | None
) -> int:
    model, majority, last = _errors(client)
    if tell is not None:
        tell({"error_rate": model, "most_frequent": majority, "last_label": last})
    if model < majority and model < last:
        console.print("\n[green]The model beats both baselines.[/green]")
        return 0
    console.print("\n[red]The model does not beat both baselines.[/red]")
    return 1
