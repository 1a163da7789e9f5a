"""Seeds of schedules that found a fault of the service, by its name in `bugs.py`.

There the fault can be planted again; with it these seeds find it, without it they find nothing.
"""

REGRESSIONS = {
    # A snapshot of lost entries was taken for the journal's state, at each rebuilding again.
    "snapshot that does not lead on": (23, 32),
    # Until the journal answered; where it did not, until the next append.
    "fork served until it is rebuilt": (16, 175),
    # A prediction whose body was on its way when the fork was found.
    "fork served to who asked before": (149, 298),
    # Repetitions alone never showed a replica that the journal had lost what it had learned.
    "no chain check where nothing is new": (175, 178),
    # By a rebuilding, or by entries that were announced and then not there.
    "acknowledged though known to be lost": (119, 172),
    # A control was applied twice, or a model stayed forked for good.
    "refresh cancelled with its caller": (162, 217),
    # asyncio complained of it in the log.
    "error of a loading unseen": (110, 170),
    # A state was left out for good where its copy was trimmed away with the record naming it.
    "copy gone with its record": (1661,),
}
