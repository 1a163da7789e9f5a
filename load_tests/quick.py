"""Hot paths in five minutes. CONTRIBUTING.md asks for it before a merge that touches them."""

from collections.abc import Iterator

from load_tests import http, ingest, start
from load_tests.measure import Row

TITLE = "Quick"


def rows() -> Iterator[Row]:
    yield from http.rows()
    yield from ingest.rows("libsvm", "ndjson", "arrow", "predict")
    yield from start.rows()


def about() -> list[str]:
    return [
        "`make bench-quick` runs these, rows of [Ingest](#ingest) and of the first table, in fewer "
        "rounds. It fails if a row takes over a tenth more CPU against its peer than here."
    ]
