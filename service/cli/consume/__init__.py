"""`dualstream consume`: learns from a log such as Kafka's, exactly once.

loop.py          reads partitions, posts batches, waits and retries
batch.py         rows of one partition between two offsets
reader.py        what a reader of a log offers
rows.py          messages -> lines of NDJSON
dead_letters.py  messages that are not learned
counters.py      counts of this process
"""
