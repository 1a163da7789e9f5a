"""Starts a server on a store of its own, streams Adult through it, and judges the result."""

import lzma
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from service.demo.server_process import ServerProcess

MODEL = "adult"
SPEC = {"algorithm": "dual_ascent", "loss": "logistic", "features": {"kind": "indexed", "dim": 123}}
ROWS_PER_REQUEST = 50
REPORT_EVERY = 4000
# The first model of a family on a machine waits for its kernels.
FIRST_COMPILATION_S = 120.0
ROWS_TO_PREDICT = 3


def run_demo(console: Console) -> int:
    """The exit code: 0 when the model makes fewer mistakes than both baselines."""
    lines = adult_lines()
    with tempfile.TemporaryDirectory(prefix="dualstream-demo-") as folder:
        store = f"sqlite:///{Path(folder) / 'demo.db'}"
        with (
            ServerProcess(store) as server,
            httpx.Client(base_url=server.url, timeout=FIRST_COMPILATION_S) as client,
        ):
            for line in server.said:
                console.print(line, style="dim", highlight=False, soft_wrap=True)
            console.print(
                "creating the model; the first time, its kernels are compiled", style="dim"
            )
            client.put(f"/models/{MODEL}", json=SPEC).raise_for_status()
            _stream(console, client, lines)
            _predict(console, client, lines)
            _certificate(console, client)
            return _verdict(console, client)


def adult_lines() -> list[bytes]:
    """The 32,561 rows as LIBSVM lines, in file order."""
    packed = files("service.demo").joinpath("adult.xz").read_bytes()
    return lzma.decompress(packed).splitlines()


def _stream(console: Console, client: httpx.Client, lines: list[bytes]) -> None:
    bar = Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    console.print("    rows   rows/s   error: model   majority class   last label")
    with bar:
        task = bar.add_task("learning", total=len(lines))
        began, reported = time.perf_counter(), 0
        for first in range(0, len(lines), ROWS_PER_REQUEST):
            body = b"\n".join(lines[first : first + ROWS_PER_REQUEST])
            answer = client.post(
                f"/models/{MODEL}/learn", content=body, headers={"content-type": "text/x-libsvm"}
            )
            answer.raise_for_status()
            done = answer.json()["seq"]
            bar.update(task, completed=done)
            if done // REPORT_EVERY > reported // REPORT_EVERY or done == len(lines):
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


def _predict(console: Console, client: httpx.Client, lines: list[bytes]) -> None:
    console.print("\nGET /predict for the last rows:")
    for line in lines[-ROWS_TO_PREDICT:]:
        label, *pairs = line.decode().split()
        answer = client.get("/predict", params={"model": MODEL, "x": ",".join(pairs)})
        told = answer.raise_for_status().json()
        console.print(
            f"  label {label}  predicted {told['label']}  "
            f"score {told['score']:+.3f}  probability {told['probability']:.3f}",
            highlight=False,
        )


def _certificate(console: Console, client: httpx.Client) -> None:
    told = client.get(f"/models/{MODEL}/certificate").raise_for_status().json()
    kind = "estimated on" if told["estimate"] else "exact on"
    console.print(
        f"\nCertificate, {kind} {told['rows']:,} retained rows: primal {told['primal']:.4f}, "
        f"dual {told['dual']:.4f}, gap {told['gap']:.4f} ({told['relative_gap']:.1%})",
        highlight=False,
    )


def _verdict(console: Console, client: httpx.Client) -> int:
    model, majority, last = _errors(client)
    if model < majority and model < last:
        console.print("[green]The model beats both baselines.[/green]")
        return 0
    console.print("[red]The model does not beat both baselines.[/red]")
    return 1
