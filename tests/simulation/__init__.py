"""Deterministic simulation: the service's own classes under a scheduler that a seed decides.

    loop.py     one clock, one source of chance, an event loop for each process
    log.py      the log of a model in memory: it can lose its tail
    store.py    a journal of such logs, as its server sees it
    late.py     rows that are remembered, labels that come later
    refits.py   refits that are asked for, fall due, die with a worker and are taken over
    faults.py   what goes wrong on the way to the journal, and one process's connection to it
    models.py   the models, rows and controls that schedules are made of
    client.py   who asks the workers for something
    world.py    workers, clients and misfortune: one schedule from its seed
    checks.py   what must hold when all is quiet again, and at each answer
    bugs.py     planted faults, to show that they would be found

`python -m tests.simulation SEED` replays one schedule and tells all that happens in it.
"""
