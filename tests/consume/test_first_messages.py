"""The check of the first messages of a new source, by a real server."""

from collections.abc import Iterator

import pytest

from dualstream.client import Client
from dualstream.consume.reader import ReaderError
from dualstream.consume.server import ModelServer
from tests.consume.fakes import FakeLog, FakeReader
from tests.consume.support import A, consumer, row
from tests.service.conftest import shared_server

__all__ = ["shared_server"]

SPEC = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}
FLAT = SPEC | {"columns": {"label": "clicked", "types": {"price": "number"}}}
ENVELOPE = b'{"before": null, "after": {"clicked": 1, "price": 3}, "op": "c"}'


@pytest.fixture
def client(shared_server) -> Iterator[Client]:
    with Client(shared_server.url) as client:
        yield client


def test_a_source_whose_rows_are_all_refused_changes_nothing(client, subtests):
    for spec, bad, good, reason in [
        (SPEC, ENVELOPE, row(1), "unknown field `before`"),
        (SPEC, b'{"x": {"a": 1}, "y": "maybe"}', row(1), "'maybe' is not a label"),
        (FLAT, ENVELOPE, b'{"clicked": 1, "price": 2}', "clicked"),
        (
            FLAT,
            b'{"clicked": 1, "price": "a"}',
            b'{"clicked": 1, "price": 2}',
            "'price' must be a number",
        ),
    ]:
        with subtests.test(spec=spec, bad=bad, good=good, reason=reason):
            client.create("clicks", spec)
            server = ModelServer(client, "clicks")
            reader = FakeReader(FakeLog(**{A: [bad] * 150}))
            reader.rebalance(A)
            with pytest.raises(ReaderError, match="refused the first 100 messages: ") as refused:
                consumer(reader, server, max_rows=200).run(until_end=True)
            assert reason in str(refused.value)
            assert client.get("clicks").seq == 0 and client.sources("clicks") == []
            reader = FakeReader(FakeLog(**{A: [*[bad] * 20, good, *[bad] * 20]}))
            reader.rebalance(A)
            one = consumer(reader, server, max_rows=200)
            one.run(until_end=True)
            assert (one.counters.learned, one.counters.refused) == (1, 40)
            client.delete("clicks")
