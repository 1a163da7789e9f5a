"""Fuzzing of all readers of bytes from outside, with atheris.

    targets.py        readers by name: what each input does, and what must hold
    text_targets.py   request bodies: formats, encodings, chunks
    store_targets.py  journal records, snapshots, entries of a Redis stream
    guarded.py        kernels as plain Python whose arrays refuse negative indices
    seeds.py          seed inputs
    corpus.py         kept inputs: a small set with the same coverage
    session.py        one target under atheris, in a process of its own
    test_corpus.py    runs the kept inputs in each test run

`python -m tests.fuzz` gives each target its share of the minutes, in two passes: kernels as plain
Python, whose branches the fuzzer sees, and then compiled with bounds checks over all kept inputs.
An input that shows a fault is kept in `.cache/fuzz/TARGET`.
"""
