"""Deterministic simulation: the service's own classes under a seeded scheduler.

    loop.py        one clock, one source of chance, one event loop per process
    log.py         a model's log in memory, which can lose its tail
    store.py       a journal of such logs, as its server sees it
    faults.py      failures on the way to the journal, and one process's connection to it
    models.py      models, rows and controls that schedules are made of
    client.py      clients of the workers
    late.py        pending rows and late labels
    refits.py      refits: requested, due, lost with a worker, resumed by another
    asking.py      requests for a model by its id, and damaged heads
    misfortune.py  failures of workers, store and models, at random or aimed at a call
    combined_failures.py       scenarios of several failures, each at its moment
    world.py       workers, clients and failures: one schedule from its seed
    notes.py       conditions checked at each answer
    truth.py       the state that one learner computes from the final journal
    checks.py      conditions checked at the end
    losses.py      how many records each process counts as lost
    bugs           planted faults, which prove that the checks find them
    seeds.py       the first seed that finds each fault, written by hunt.py

`python -m tests.simulation SEED` replays one schedule and prints everything that happens.
"""
