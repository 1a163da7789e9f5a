"""Deterministic simulation: the service's own classes under a scheduler that a seed decides.

    loop.py        one clock, one source of chance, an event loop for each process
    log.py         the log of a model in memory: it can lose its tail
    store.py       a journal of such logs, as its server sees it
    faults.py      what goes wrong on the way to the journal, and one process's connection to it
    models.py      the models, rows and controls that schedules are made of
    client.py      who asks the workers for something
    late.py        rows that are remembered, labels that come later
    refits.py      refits that are asked for, fall due, die with a worker and are taken over
    asking.py      who asks for a model by its id, and may be told a damaged head
    misfortune.py  what befalls workers, their store and its models, by chance or aimed at a call
    plots.py       what takes several misfortunes, each at its moment
    world.py       workers, clients and misfortune: one schedule from its seed
    notes.py       what has to be so at each answer
    truth.py       what one learner makes of the final journal
    checks.py      what must hold for all when all is quiet again
    losses.py      how many records each process counts as lost
    bugs           planted faults, to show that they would be found
    seeds.py       the first seed that finds each, as hunt.py has written it down

`python -m tests.simulation SEED` replays one schedule and tells all that happens in it.
"""
