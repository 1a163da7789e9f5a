"""The command that replays a store's journal: replay."""

import asyncio
from typing import Annotated

import msgspec
import typer

from dualstream.service.cli.common import JSON, app, fail, print_json, say
from dualstream.service.cli.settings_flags import flag, read_settings
from dualstream.service.journal.protocol import JournalError


@app.command("replay")
def replay_model(
    model: Annotated[str, typer.Argument(help="The model's id.")],
    until: Annotated[
        int | None,
        typer.Option(min=0, help="The seq whose state to compute; the journal's end if unset."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="PATH=VALUE: another spec, as in rho=0.01, window.beta=0.999."),
    ] = None,
    store: Annotated[str | None, flag("store")] = None,
    as_json: JSON = False,
) -> None:
    """Compute a state of the past, or what another spec would have made of the same journal.

    Reads alone: neither the model nor its server is touched.

    Example:

        dualstream replay clicks --until 5000 --set rho=0.01
    """
    from dualstream.service.cli.replay import Refused, parse_changes, replay
    from dualstream.service.journal.record import RecordError
    from dualstream.service.replica.recovery import Forked

    where = read_settings({} if store is None else {"store": store}).store
    try:
        told = asyncio.run(replay(where, model, until, parse_changes(changes or [])))
    except (Refused, JournalError, RecordError, Forked, ValueError) as refused:
        fail(str(refused))
    if as_json:
        print_json(told)
        return
    if told.seq == 0 or told.from_seq > told.seq:
        came = "without a record to learn"
    elif told.from_seq == 0:
        came = "from a kept state"
    else:
        came = f"from records {told.from_seq} to {told.seq}"
    say(f"{told.model} at seq {told.seq}, {came}")
    if changes and told.from_seq > 1:
        say(f"the journal is kept from seq {told.from_seq} on: what came before is not learned")
    if told.left_out_rollbacks:
        say(f"{told.left_out_rollbacks} rollbacks are left out: they name states of another spec")
    if told.left_out_refits:
        say(f"{told.left_out_refits} refits are left out: they solve the problem of another spec")
    if told.left_out_pauses:
        say(f"{told.left_out_pauses} controls of pauses are left out: all rows were learned")
    say(f"samples {told.samples}, rejected {told.rejected}, state {told.state_digest}")
    for view in ("since_start", "rolling", "fading"):
        say(f"{view}: {msgspec.json.encode(told.metrics[view]).decode()}")
