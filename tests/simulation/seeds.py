"""Seeds that found a fault, by what it was: they are played in every run."""

REGRESSIONS = {
    "a snapshot beyond the journal's end was taken for its state": (72, 120, 298),
    "a fork was served until the journal answered, or on and on where it did not": (252, 388, 397),
    "a fork went unseen where an append brought nothing new": (1537, 3227, 3323, 7832),
    "what a rebuilding showed to be lost was acknowledged": (49, 264, 424, 8206),
    "a client that left in the midst of a refresh left it half applied, or forked for good": (
        887,
        6047,
    ),
    "asyncio complained of a loading that failed when nobody waited any more": (2070,),
    "entries lost between two reads of a load or a rebuilding failed the request": (2702, 4160),
}
