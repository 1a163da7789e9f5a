"""Portfolios: kernels against Vowpal Wabbit's single learner, and durable learning with `eight`.

Vowpal Wabbit runs its own driver over a file in its own format, in memory, so reading text is part
of its time. Rows for our kernel are in memory as a batch, as they leave the service's codecs. A
separate row adds the parsing of LIBSVM text.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from vowpalwabbit import Workspace

from dualstream.service.cli.demo.adult import adult_lines
from dualstream.service.codecs import parse_json
from dualstream.service.codecs.row_schema import RowSchema
from dualstream.solvers import Batch, make_learner, resolve_spec
from dualstream.solvers.portfolio.members import MemberSet
from dualstream.solvers.portfolio.presets import EIGHT, PRIOR, Member
from dualstream.solvers.portfolio.retained_rows import RetainedRows
from dualstream.solvers.portfolio.spec import ModelFactory
from dualstream.solvers.portfolio.weighting_state import Rule
from load_tests.http import (
    CONNECTIONS,
    GENERATOR_CORE,
    SERVER_CORE,
    SPEC,
    Load,
    Side,
    as_json,
    checked,
    create,
    named_json,
    send,
    serving,
)
from load_tests.kernel import SLICE_ROWS, adult
from load_tests.measure import ROUNDS, Row, interleaved, on_core
from tests.redis_server import running_redis

TITLE = "Portfolios"
COPIES = 10
PROFILE_COPIES = 2
BODIES = 5000
BULK_ROWS, BULK_CONNECTIONS = 1000, 8
VW_OPTIONS = "--loss_function logistic --quiet --no_stdin"

DIM = 123
INDEXED = {"kind": "indexed", "dim": DIM}
BALANCED = {"algorithm": "dual_ascent", "loss": "logistic", "strength": 30, "scaling": "balanced"}
SPECS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"algorithm": "portfolio", "members": name} for name in ("eight", "twelve", "papers")},
    "one dual_ascent, strength 30, balanced": BALANCED,
}


def rows() -> list[Row]:
    return [*kernel_rows(), *http_rows()]


# -- kernels -------------------------------------------------------------------------------------


def kernel_rows() -> list[Row]:
    batch, lines = adult(COPIES), adult_lines() * COPIES
    n = len(batch)
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-", dir=in_memory()) as folder:
        file = vw_file(Path(folder), lines)
        text = [b"\n".join(lines[at : at + SLICE_ROWS]) for at in range(0, n, SLICE_ROWS)]
        sides: dict[str, Callable[[], float]] = {"vw": lambda: vowpal_wabbit(file, n)}
        for name, spec in SPECS.items():
            sides[name] = partial(rate, spec, batch)
        sides["text"] = lambda: n / seconds_to_learn_text(SPECS["eight"], text)
        with on_core(GENERATOR_CORE):
            figures = interleaved(sides)
    kernels = [
        Row(
            f"{name}: learn kernel and stages, a9a x {COPIES} ({n:,} rows), one core",
            "rows/s",
            figures[name],
            "Vowpal Wabbit, one learner, reading text",
            figures["vw"],
            gate=0.6 if name == "eight" else None,
            goal=1.0 if name == "eight" else None,
            floor=0.4e6 if name == "eight" else None,
        )
        for name in SPECS
    ]
    from_text = Row(
        f"eight: the same, reading LIBSVM text ({sum(map(len, text)) / 1e6:.1f} MB)",
        "rows/s",
        figures["text"],
        "Vowpal Wabbit, one learner, reading text",
        figures["vw"],
    )
    return [*kernels, from_text]


def rate(spec: Mapping[str, Any], batch: Batch) -> float:
    return len(batch) / seconds_to_learn(spec, batch)


def seconds_to_learn(spec: Mapping[str, Any], batch: Batch, step: int = SLICE_ROWS) -> float:
    """Seconds for all rows from an empty learner, in slices as the service takes them."""
    learner = make_learner(resolve_spec({**spec, "features": INDEXED}))
    slices = [batch[first : first + step] for first in range(0, len(batch), step)]
    began = time.perf_counter()
    for piece in slices:
        learner.learn(piece)
    return time.perf_counter() - began


def seconds_to_learn_text(spec: Mapping[str, Any], text: Sequence[bytes]) -> float:
    learner = make_learner(resolve_spec({**spec, "features": INDEXED}))
    began = time.perf_counter()
    for piece in text:
        learner.learn(Batch.from_libsvm(piece, DIM).batch)
    return time.perf_counter() - began


def in_memory() -> str | None:
    """A folder in /dev/shm where available."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def vw_file(folder: Path, lines: Sequence[bytes]) -> Path:
    """Rows in Vowpal Wabbit's format. It omits values of 1, and Adult has no others."""
    assert all(pair.endswith(b":1") for line in lines for pair in line.split()[1:])
    file = folder / "adult.vw"
    plain = [line.replace(b" ", b" | ", 1).replace(b":1", b"") for line in lines]
    file.write_bytes(b"\n".join(plain) + b"\n")
    return file


def vowpal_wabbit(file: Path, n: int) -> float:
    """Rows per second of its own driver, which runs while the workspace is made."""
    began = time.perf_counter()
    workspace = Workspace(f"{VW_OPTIONS} -d {file}")
    seconds = time.perf_counter() - began
    learned, loss = workspace.get_weighted_examples(), workspace.get_sum_loss() / n
    workspace.finish()
    if learned != n or not 0.3 < loss < 0.4:
        raise RuntimeError(f"Vowpal Wabbit learned {learned} of {n} rows with mean loss {loss}")
    return n / seconds


# -- over HTTP -----------------------------------------------------------------------------------

MODELS: Mapping[str, Mapping[str, Any]] = {
    "indexed": SPEC,
    "named": {**SPEC, "features": {"kind": "hashed"}},
    "eight": {**SPECS["eight"], "features": {"kind": "hashed"}},
}
BULK = {**SPECS["eight"], "features": INDEXED}


def http_rows() -> list[Row]:
    lines = adult_lines()
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as directory, ExitStack() as stack:
        folder = Path(directory)
        for name, body_of in (("indexed", as_json), ("named", named_json)):
            (folder / name).write_text("\n".join(map(body_of, lines[:BODIES])) + "\n")
        redis = stack.enter_context(running_redis(appendfsync="everysec"))
        os.sched_setaffinity(redis.pid, {int(GENERATOR_CORE)})
        stores = {
            "SQLite normal": (f"sqlite:///{folder}/bench.db", "normal"),
            "Redis everysec": (redis.url, "everysec"),
        }
        sides = {
            store: stack.enter_context(serving(*where, MODELS)) for store, where in stores.items()
        }
        singles = single_rows(sides, folder)
        side = sides["Redis everysec"]["eight"]
        return [*singles, bulk_row(side.url, side.server, redis.url, folder)]


def single_rows(sides: Mapping[str, Mapping[str, Side]], folder: Path) -> list[Row]:
    loads = {model: Load(folder / "named") for model in MODELS}
    loads["indexed"] = Load(folder / "indexed")
    figures = interleaved(
        {
            f"{store} {model}": partial(send, loads[model], side)
            for store, models in sides.items()
            for model, side in models.items()
        }
    )
    names = {
        "indexed": "one O-DCA learner, indexed features",
        "named": "one O-DCA learner, named features",
        "eight": "`eight`, named features",
    }
    return [
        Row(
            f"durable single-sample JSON learn, {CONNECTIONS} connections, one worker, {store}: "
            f"{names[a]}",
            "requests/s",
            figures[f"{store} {a}"],
            names[b],
            figures[f"{store} {b}"],
            gate=gate,
            notes=[
                f"generator's CPU share at most {share(models[a]):.0%}, {share(models[b]):.0%} "
                "(the other)"
            ],
            void=models[a].void or models[b].void,
            cpu=(least_cpu(models[a]), least_cpu(models[b])),
        )
        for store, models in sides.items()
        for a, b, gate in (
            ("eight", "indexed", 0.9),
            ("eight", "named", 0.9),
            ("named", "indexed", None),
        )
    ]


def share(side: Side) -> float:
    return max(side.generator_share)


def least_cpu(side: Side) -> float:
    """Minimum CPU. On a shared machine it is more reliable than requests per second."""
    return min(side.server_cpu)


def bulk_row(url: str, server: int, store: str, folder: Path) -> Row:
    """Bulk learning. Each round has a new model, so that the model's journal does not grow."""
    lines = adult_lines()
    n = COPIES * len(lines)
    (folder / "libsvm").write_bytes(b"\n".join(lines) + b"\n")
    what = Load(folder / "libsvm", BULK_ROWS, "text/x-libsvm", BULK_CONNECTIONS)
    check = partial(checked, store, "bulk", rows_each=BULK_ROWS)
    side = Side(url, server, "/models/bulk/learn", check)

    def ours() -> float:
        create(url, "bulk", BULK)
        row_seconds = BULK_ROWS * send(what, side)
        httpx.delete(f"{url}/models/bulk", timeout=60).raise_for_status()
        return row_seconds

    spent: list[float] = []

    def theirs() -> float:
        before = time.process_time()
        with on_core(SERVER_CORE):
            rate = vowpal_wabbit(file, n)
        spent.append(1e6 * (time.process_time() - before) / n)
        return rate

    with tempfile.TemporaryDirectory(prefix="dualstream-bench-", dir=in_memory()) as memory:
        file = vw_file(Path(memory), lines * COPIES)
        figures = interleaved({"ours": ours, "theirs": theirs})
    return Row(
        f"durable bulk learn of LIBSVM text with `eight`, {BULK_ROWS:,} rows a request, "
        f"{BULK_CONNECTIONS} connections, one worker, Redis everysec",
        "rows/s",
        figures["ours"],
        "Vowpal Wabbit, one learner, its own driver, not durable",
        figures["theirs"],
        notes=[f"generator's CPU share at most {share(side):.0%} (ours)"],
        void=side.void,
        cpu=(least_cpu(side) / BULK_ROWS, min(spent)),
    )


# -- where the time goes -------------------------------------------------------------------------


def about() -> list[str]:
    """Specifications of the rows, and a profile measured in this run."""
    return [
        "`python -m load_tests portfolio` runs these alone. Specifications: "
        + "; ".join(f"{name} `{spec_text(spec)}`" for name, spec in SPECS.items())
        + f", with `features` `{spec_text(INDEXED)}`. Over HTTP named features have "
        '`{"kind":"hashed"}`, and the single learner is '
        f"`{spec_text(SPEC)}`.",
        "",
        f"Vowpal Wabbit: `Workspace('{VW_OPTIONS} -d FILE')`, the file in memory, pinned to the "
        "same core as ours (over HTTP: the server's). The time is that of creating the workspace.",
        "",
        *profile(),
    ]


def spec_text(spec: Mapping[str, Any]) -> str:
    return str(dict(spec)).replace("'", '"').replace(": ", ":").replace(", ", ",")


def profile() -> list[str]:
    batch = adult(PROFILE_COPIES)
    with on_core(GENERATOR_CORE):
        members, one_row = interleaved(kernels(batch)), one_by_one(batch)
    return [
        f"Profile of the kernel, ns a row (Adult x {PROFILE_COPIES}, one core, minimum of {ROUNDS} "
        "rounds). *One more* is a quarter of the time that four more members of a kind add to one "
        "of them, including their part of the rule:",
        "",
        "| what | ns/row |",
        "|---|---|",
        *(f"| {name} | {figure:,.0f} |" for name, figure in with_differences(members)),
        "",
        "Profile of a single row, us a row (measured in the same way):",
        "",
        "| what | us/row |",
        "|---|---|",
        *(f"| {name} | {figure:.2f} |" for name, figure in one_row),
    ]


KINDS = {
    "dual_ascent": EIGHT[1],
    "spg_fixed_total": EIGHT[5],
    "adagrad": EIGHT[7],
    "diagonal_newton": EIGHT[8],
}


def portfolio_of(*members: Member) -> dict[str, Any]:
    """A portfolio of the members, renamed so that a member can occur more than once."""
    named = [{**member, "name": f"m{index}"} for index, member in enumerate(members)]
    return {"algorithm": "portfolio", "members": named}


def kernels(batch: Batch) -> dict[str, Callable[[], float]]:
    """Nanoseconds a row of whole portfolios and of parts of `eight`."""
    specs: dict[str, Mapping[str, Any]] = dict(SPECS)
    specs["the prior alone"] = portfolio_of(PRIOR)
    for kind, member in KINDS.items():
        specs[f"one {kind} alone"] = portfolio_of(member)
        specs[f"five {kind}"] = portfolio_of(*[member] * 5)
    sides: dict[str, Callable[[], float]] = {
        name: lambda spec=spec: 1e9 / rate(spec, batch) for name, spec in specs.items()
    }
    scores = np.random.default_rng(0).standard_normal((len(batch), len(EIGHT)))

    def the_rule() -> float:
        rule = Rule(EIGHT, 0.5, 1e-4, classes=True)
        began = time.perf_counter()
        rule.count(scores, batch.labels, batch.weights)
        return ns_a_row(time.perf_counter() - began, batch)

    text = b"\n".join(adult_lines() * PROFILE_COPIES)

    def the_parse() -> float:
        began = time.perf_counter()
        Batch.from_libsvm(text, DIM)
        return ns_a_row(time.perf_counter() - began, batch)

    return sides | {"the rule alone, for `eight`": the_rule, "parsing LIBSVM text": the_parse}


def ns_a_row(seconds: float, batch: Batch) -> float:
    return 1e9 * seconds / len(batch)


def with_differences(figures: Mapping[str, Sequence[float]]) -> list[tuple[str, float]]:
    """The minima, with the cost of one more member of each kind."""
    least = {name: min(times) for name, times in figures.items()}
    table = [(name, figure) for name, figure in least.items() if not name.startswith("five ")]
    more = {kind: (least[f"five {kind}"] - least[f"one {kind} alone"]) / 4.0 for kind in KINDS}
    shared = least["one dual_ascent alone"] - more["dual_ascent"]
    table += [(f"one more {kind}", figure) for kind, figure in more.items()]
    return [*table, ("stages and all else that is there once (one dual_ascent, less one)", shared)]


def one_by_one(batch: Batch) -> list[tuple[str, float]]:
    """Microseconds a row of a portfolio and its parts, called with one row at a time.

    The server learns concurrent requests in one call.
    """
    warm, n = batch[:SLICE_ROWS], len(batch) // 8
    singles = [batch[i : i + 1] for i in range(SLICE_ROWS, SLICE_ROWS + n)]
    eight = resolve_spec({**SPECS["eight"], "features": INDEXED})
    whole, alone = make_learner(eight), make_learner(resolve_spec(SPEC))
    rule = Rule(EIGHT, eight["eta"], eight["share"], classes=True)
    members = MemberSet.of(EIGHT, eight, ModelFactory(resolve_spec, make_learner), False)
    retained = RetainedRows(DIM, eight["retain"])
    for learner in (whole, alone):
        learner.learn(warm)
    members.learn(warm, rule)
    retained.add(warm)

    def each(call: Callable[[Batch], Any]) -> Callable[[], float]:
        def timed() -> float:
            began = time.perf_counter()
            for row in singles:
                call(row)
            return 1e6 * (time.perf_counter() - began) / n

        return timed

    def in_batches(rows: int) -> Callable[[], float]:
        return lambda: 1e6 * seconds_to_learn(SPECS["eight"], batch, rows) / len(batch)

    def parsing(model: str, body_of: Callable[[bytes], str]) -> Callable[[], float]:
        schema = RowSchema(resolve_spec(MODELS[model]))
        bodies = [body_of(line).encode() for line in adult_lines()[:BODIES]]
        for body in bodies:
            schema.mark_journalled(parse_json(schema, body, True).names)

        def timed() -> float:
            began = time.perf_counter()
            for body in bodies:
                parse_json(schema, body, True)
            return 1e6 * (time.perf_counter() - began) / len(bodies)

        return timed

    parts = {
        "`eight`: learn": each(whole.learn),
        "of it the kernel, and the call of it": each(lambda row: members.learn(row, rule)),
        "of it retaining the row": each(retained.add),
        f"`eight`, {CONNECTIONS} rows a call": in_batches(CONNECTIONS),
        f"`eight`, {SLICE_ROWS} rows a call": in_batches(SLICE_ROWS),
        "one O-DCA learner: learn": each(alone.learn),
        "parsing a JSON body, indexed features": parsing("indexed", as_json),
        "parsing a JSON body, named features": parsing("named", named_json),
    }
    return [(name, min(times)) for name, times in interleaved(parts).items()]
