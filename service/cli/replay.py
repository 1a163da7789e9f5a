"""Command `replay`: recompute a state from a store's journal."""

import asyncio
from typing import Annotated

import msgspec
import typer

from dualstream.service.cli.common import JSON, app, fail, print_json, say
from dualstream.service.cli.settings_flags import flag, read_settings
from dualstream.service.journal.protocol import JournalError


@app.command("replay")
def replay_model(
    model: Annotated[str, typer.Argument(help="Id of the model.")],
    until: Annotated[
        int | None,
        typer.Option(min=0, help="Compute the state at this seq; default: end of the journal."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="PATH=VALUE: change the spec, e.g. rho=0.01 or window.beta=0.999."
        ),
    ] = None,
    store: Annotated[str | None, flag("store")] = None,
    as_json: JSON = False,
) -> None:
    """Compute an earlier state, or the state under another spec, from the journal.

    Read-only: does not change the model or its server.

    Example:

        dualstream replay clicks --until 5000 --set rho=0.01
    """
    from dualstream.service.journal.record import RecordError
    from dualstream.service.models.replay import Refused, parse_changes, replay
    from dualstream.service.replica.recovery import Forked

    where = read_settings({} if store is None else {"store": store}).store
    try:
        result = asyncio.run(replay(where, model, until, parse_changes(changes or [])))
    except (Refused, JournalError, RecordError, Forked, ValueError) as refused:
        fail(str(refused))
    if as_json:
        print_json(result)
        return
    if result.seq == 0 or result.from_seq > result.seq:
        came = "without records"
    elif result.from_seq == 0:
        came = "from a stored state"
    else:
        came = f"from records {result.from_seq} to {result.seq}"
    say(f"{result.model} at seq {result.seq}, {came}")
    if changes and result.from_seq > 1:
        say(f"the journal starts at seq {result.from_seq}; earlier rows are not learned")
    if result.left_out_rollbacks:
        say(f"{result.left_out_rollbacks} rollbacks are skipped: they name states of another spec")
    if result.left_out_refits:
        say(f"{result.left_out_refits} refits are skipped: they solve the problem of another spec")
    if result.left_out_pauses:
        say(f"{result.left_out_pauses} controls of pauses are skipped; all rows are learned")
    say(f"samples {result.samples}, rejected {result.rejected}, state {result.state_digest}")
    for view in ("since_start", "rolling", "fading"):
        say(f"{view}: {msgspec.json.encode(result.metrics[view]).decode()}")
