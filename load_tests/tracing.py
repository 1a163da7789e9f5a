"""Cost of tracing: the server's CPU per single-sample learn, with traces of 1 % and without.

The server runs on core 0; wrk and the receiver of the spans run on core 1.
"""

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest.mock import patch

from dualstream.service.cli.demo.adult import adult_lines
from load_tests.http import CONNECTIONS, GENERATOR_CORE, Load, Side, as_json, ours, send
from load_tests.measure import Row, interleaved, on_core
from load_tests.span_receiver import SAMPLER, receiver

TITLE = "Tracing"
ROUNDS, SECONDS = 25, 2
"""Many short rounds: the sizes of commit groups, and so the cost per request, vary between them."""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder, ExitStack() as stack:
        bodies = Path(folder) / "bodies"
        bodies.write_text("\n".join(map(as_json, adult_lines()[:5000])) + "\n")
        url, received = stack.enter_context(receiver())
        off = stack.enter_context(ours(f"sqlite:///{folder}/off.db", "normal"))
        with patch.dict("os.environ", {"OTEL_EXPORTER_OTLP_ENDPOINT": url, **SAMPLER}):
            on = stack.enter_context(ours(f"sqlite:///{folder}/on.db", "normal"))
        with on_core(GENERATOR_CORE):
            figures = interleaved(
                {"off": partial(cost, bodies, off), "on": partial(cost, bodies, on)}, ROUNDS
            )
        return [
            Row(
                f"CPU per durable single-sample learn, {CONNECTIONS} connections, traces of 1 %",
                "us",
                figures["on"],
                "without traces",
                figures["off"],
                smaller_is_better=True,
                void=off.void or on.void or ("" if received else "no span arrived"),
            )
        ]


def cost(bodies: Path, side: Side) -> float:
    """Microseconds of the server's CPU per request."""
    send(Load(bodies, seconds=SECONDS), side)
    return side.server_cpu[-1]


def about() -> list[str]:
    return [
        "The server samples each hundredth trace and sends its spans by OTLP over HTTP. A ratio of "
        "1.05 is 5 % more CPU per request."
    ]
