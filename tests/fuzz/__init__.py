"""Coverage-guided fuzzing of whatever reads bytes from outside, or from the store.

    targets.py        the readers by name: what each input does, and what must hold
    text_targets.py   bodies of requests: formats, encodings, chunks
    store_targets.py  records of the journal, snapshots, messages of an input
    guarded.py        kernels as plain Python whose arrays refuse indices from the end
    seeds.py          what fuzzing begins with
    corpus.py         inputs that are kept, as few as go the same ways
    session.py        one target under atheris, in a process of its own
    test_corpus.py    what is kept, once more in each test run

`python -m tests.fuzz` gives each target its share of some minutes. It goes twice: the kernels as
plain Python, where the fuzzer sees their branches, and then compiled with bounds checks over all
that was found. An input that shows a fault stays in `.cache/fuzz/TARGET`.
"""
