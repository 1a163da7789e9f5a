"""Methods that learn and observe: samples, streams, files, tables, lines, and late labels."""

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

from dualstream.client.calls import (
    NDJSON,
    Call,
    Next,
    Steps,
    model_path,
    new_key,
    query_of,
    with_key,
)
from dualstream.client.errors import Refused
from dualstream.client.method import JSON_BODY, method
from dualstream.client.progress_bar import OnProgress, ProgressBar, both
from dualstream.client.resumable_files import RowFile
from dualstream.client.row_values import labels_body
from dualstream.client.rows import ROWS_PER_REQUEST, bodies_arriving, bodies_of, sample_of
from dualstream.client.send_rows import LEARN, OBSERVE, RowMethods, Target
from dualstream.wire.schemas import Learned, LearnedStream
from dualstream.wire.sources import Source

# Samples of `learn_iter`: an iterable, for AsyncClient also an asynchronous one.
Samples = TypeVar("Samples", bound=Iterable[Any] | AsyncIterable[Any])


class LearnMethods(RowMethods, Generic[Samples]):
    """Methods of a client that learn and observe."""

    @method
    def learn(
        self,
        model: str,
        x: Any,
        y: Any = None,
        *,
        weight: Any = None,
        ids: Any = None,
        names: Sequence[str] | None = None,
        key: str | None = None,
        scores: bool = False,
        rows_per_request: int = ROWS_PER_REQUEST,
        source: Source | str | None = None,
        offset: int = 0,
    ) -> Steps[Learned]:
        """Learn one sample or many, in their order; rows.py lists the types that `x` may have.

        A table with the Arrow C stream interface (Polars, DuckDB, pyarrow, ...) has its label in a
        column. It is read once and sent as Arrow streams of about 1 MiB. With the name of a source
        as `source`, the offset of a row is its index in the table, plus `offset`: rows before the
        source's cursor are skipped, and each piece of the others is a batch of the source. Row 0
        begins a new source.

        Rows of a model with `columns` may contain their label; then leave `y` out.
        One sample is a row and its label; its score is in the response. Many rows are sent in
        requests of `rows_per_request`; the result is their sum, a LearnedStream. To repeat an
        interrupted learn, use the same `key` again; by default each learn has a new key.

        With a `source`, all rows are one batch of it, in one request without a key. The response
        has the source's next offset as `source.next`. A batch that is not the next one raises
        Refused of the kind `source-moved`, and `problem["cursor"]` is the offset to continue at.
        `unknown-source` says that the server has no cursor, and the batch is not sent with
        `first=True`: begin at the source's first row.
        """
        to = Target(model, LEARN, scores)
        return self._send(to, x, y, weight, ids, names, key, rows_per_request, source, offset)

    @method
    def learn_iter(
        self,
        model: str,
        samples: Samples,
        *,
        key: str | None = None,
        scores: bool = False,
        progress: bool = False,
        on_progress: OnProgress | None = None,
        rows_per_request: int = ROWS_PER_REQUEST,
    ) -> Steps[LearnedStream]:
        """Learn a stream of `{"x": ..., "y": ...}` or pairs (x, y) to its end, in bounded memory.

        AsyncClient also takes an asynchronous stream. `progress` shows a bar in the terminal;
        `on_progress` is called after each request.
        """
        if isinstance(samples, AsyncIterable):
            following = Next(bodies_arriving(samples, rows_per_request))
        else:
            following = Next(bodies_of(map(sample_of, samples), rows_per_request))
        with ProgressBar(model) if progress else nullcontext() as bar:
            listener = both(bar, on_progress)
            to = Target(model, LEARN, scores)
            return (yield from self._send_bodies(to, following, key, listener))

    @method
    def learn_file(
        self, model: str, file: RowFile, *, skip: int = 0, on_progress: OnProgress | None = None
    ) -> Steps[LearnedStream]:
        """Learn the rows of a file of any format, chunk by chunk, without its first `skip` chunks.

        Sending the same file again learns only what was not learned before. If the first chunk has
        no valid row, the rest is not sent. A file with a `source` is learned from its cursor.
        """
        return self._send_file(Target(model), file, skip, on_progress)

    @method
    def learn_lines(
        self, model: str, lines: bytes, *, source: Source, scores: bool = False
    ) -> Call[Learned]:
        """Learn lines of NDJSON, as they are, as one batch of a source; see `learn`.

        They may be flat rows or samples, or be empty to move the source's cursor alone.
        """
        return Target(model, LEARN, scores).batch(NDJSON, lines, source)

    @method
    def check_lines(self, model: str, lines: Sequence[bytes]) -> Steps[Refused | None]:
        """Check lines of NDJSON; learn nothing. Returns the refusal if no line is a good row."""
        body = b"\n".join((*lines, b"null"))  # with a bad line, an atomic request learns nothing
        headers, query = {"content-type": NDJSON}, query_of(atomic=True)
        call = Call[Learned]("POST", model_path(model, "learn"), Learned, query, headers, body)
        try:
            yield from self._do(call)
        except Refused as refused:
            if refused.kind != "invalid-rows":
                raise
            return refused if refused.problem.get("rejected") == len(lines) + 1 else None
        return None

    @method
    def learn_labels(
        self,
        model: str,
        labels: Mapping[str | int, Any],
        *,
        revise: bool = False,
        key: str | None = None,
    ) -> Call[Learned]:
        """Learn the labels of rows from `predict_and_remember`, by their ids.

        revise  keep the rows in the store, and let a label replace an earlier one, if that was sent
                with `revise`, too
        """
        path, headers = model_path(model, "labels"), with_key(key or new_key())
        query = query_of(revise=revise)
        return Call("POST", path, Learned, query, headers, labels_body(labels))

    @method
    def label_lines(self, model: str, labels: Sequence[bytes]) -> Call[Learned]:
        """Learn labels that are JSON texts with `id` and `y`, without an idempotency key."""
        body = b'{"labels":[' + b",".join(labels) + b"]}"
        return Call("POST", model_path(model, "labels"), Learned, {}, JSON_BODY, body)

    @method
    def observe(
        self,
        model: str,
        x: Any,
        *,
        ids: Any = None,
        names: Sequence[str] | None = None,
        key: str | None = None,
        rows_per_request: int = ROWS_PER_REQUEST,
        source: Source | str | None = None,
        offset: int = 0,
    ) -> Steps[Learned]:
        """Enter rows without a label into the history of their keys, each once; see `learn`.

        The model needs `history`, and learns nothing. `count` of the response has the observed
        rows. A label in a row is ignored. Ids are others than those of learned rows.
        """
        to = Target(model, OBSERVE)
        return self._send(to, x, None, None, ids, names, key, rows_per_request, source, offset)

    @method
    def observe_file(
        self, model: str, file: RowFile, *, skip: int = 0, on_progress: OnProgress | None = None
    ) -> Steps[LearnedStream]:
        """Observe the rows of a file, as `learn_file` learns them."""
        return self._send_file(Target(model, OBSERVE), file, skip, on_progress)

    @method
    def observe_lines(self, model: str, lines: bytes, *, source: Source) -> Call[Learned]:
        """Observe lines of NDJSON as one batch of a source, as `learn_lines` learns them."""
        return Target(model, OBSERVE).batch(NDJSON, lines, source)
