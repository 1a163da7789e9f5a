"""`dualstream consume`: learns from Kafka topics, Redis and NATS streams and MQTT topics.

schemes.py       options, and what each kind of source provides for the loop
loop.py          reads partitions, posts batches, waits and retries
batch.py         rows of one partition between two offsets, and steps before they are learned
reader.py        what a reader of a log offers
kafka.py         the reader of Kafka topics
kafka_writer.py  the writer of Kafka topics
redis.py         the reader of Redis streams, and its dead letters
entries.py       entries of Redis streams -> offsets and rows
nats.py          the reader of NATS JetStream
mqtt.py          the reader of MQTT topics
server.py        the model, by the Python client
predictions.py   scores rows without a label, and writes the answers
labels.py        learns late labels
progress.py      how far a model has read a Kafka topic
routes.py        many models of one topic
fields.py        label and id of a row
rows.py          messages -> lines of NDJSON
dead_letters.py  messages that are not learned
counters.py      counts of this process
metrics.py       the counts on /metrics
"""
