"""Media types, and rows as a model sees them."""

import io

import pyarrow as pa

from dualstream.service.codecs import RowSchema, as_batch
from dualstream.service.replica.feature_names import FeatureNames
from dualstream.solvers import resolve_spec

NDJSON = "application/x-ndjson"
INDEXED = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 5}}
HASHED = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}


def schema_of(spec: dict) -> RowSchema:
    return RowSchema(resolve_spec(spec))


def bits(parsed) -> dict:
    """All that a model sees of the rows, and of the names that ride along."""
    batch = as_batch([parsed.rows])
    names = FeatureNames()
    names.keep(parsed.names)
    got = {name: column.tobytes() for name, column in names.state().items()}
    columns = ("indptr", "indices", "values", "labels", "weights")
    return got | {name: getattr(batch, name).tobytes() for name in columns} | {"c": batch.classes}


def learn(client, body: str | bytes, media: str, path: str = "/models/m/learn"):
    return client.post(path, content=body, headers={"content-type": media})


CSV, VW, ARROW = "text/csv", "text/x-vw", "application/vnd.apache.arrow.stream"


def stream_of(*tables: pa.Table, **options) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, tables[0].schema, **options) as writer:
        for table in tables:
            writer.write_table(table)
    return sink.getvalue()
