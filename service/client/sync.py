"""The client that waits for its answers."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from service.client import routes, rows, steps
from service.client.answers import (
    Certificate,
    Change,
    Comparison,
    Event,
    Learned,
    LearnedStream,
    Member,
    Members,
    Model,
    PredictedMany,
    Resumed,
    RolledBack,
    Support,
    Timeline,
    Unlearned,
    Version,
    Versions,
    Weights,
)
from service.client.bodies import ROWS_PER_REQUEST, bodies_of
from service.client.calls import Call, asked, model_path, with_api_key
from service.client.errors import ClientError, Unreachable
from service.client.events import EventReader
from service.client.files import RowFile
from service.client.progress import ProgressBar
from service.client.retries import Attempts

T = TypeVar("T")

URL = "http://127.0.0.1:8000"
PATIENCE_S = 30.0
# The first model of a family on a machine waits for its kernels.
TIMEOUT_S = 120.0


class Client:
    """Models of the server at `url`; `with Client() as client:` closes its connections.

    A call that gets no answer, or one that says to come back, is made again for `patience_s`; what
    learns goes under a key, so that it is learned once. `api_key`, else DUALSTREAM_API_KEY of the
    environment, is shown to the server. `http` is an httpx.Client of one's own, with headers of
    its own.

    Every method raises Refused where the server says no, Unreachable, and BadInput for what cannot
    be sent.
    """

    def __init__(
        self,
        url: str = URL,
        *,
        api_key: str | None = None,
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        self._patience_s = patience_s
        self._http = http or httpx.Client(
            base_url=url, timeout=timeout_s, headers=with_api_key(headers, api_key)
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- models ----------------------------------------------------------------------------------

    def create(
        self, model: str, spec: routes.Spec | None = None, *, replace: bool = False
    ) -> Model:
        """Make a model, or find it with the same spec.

        With `replace` one that has another spec is deleted, with all that it has learned.
        """
        return self._follow(steps.create(model, spec, replace))

    def get(self, model: str, *, digest: bool = False) -> Model:
        """Its spec and where it stands."""
        return self._do(routes.get(model, digest))

    def models(self) -> list[Model]:
        """All models of the store, in the order of their ids."""
        return self._follow(steps.all_models())

    def audit(self, model: str | None = None, *, after: str | None = None) -> list[Change]:
        """Who changed models, the oldest change first: all of them, or of one model.

        `after` is the `place` of the last one at hand.
        """
        return self._follow(steps.all_changes(model, after))

    def delete(self, model: str) -> None:
        """Delete it, its journal and its versions."""
        self._do(routes.delete(model))

    def metrics(self, model: str) -> dict[str, Any]:
        """Progressive metrics, with baselines: `since_start`, `rolling`, `fading`."""
        return self._do(routes.metrics(model))

    def timeline(self, model: str) -> Timeline:
        """How its metrics went, and where its loss has drifted."""
        return self._do(routes.timeline(model))

    def weights(self, model: str, *, top: int = 20, member: str | None = None) -> Weights:
        """The largest weights, by magnitude."""
        return self._do(routes.weights(model, top, member))

    def support(self, model: str) -> Support:
        """The features that a sparse model uses."""
        return self._do(routes.support(model))

    def certificate(self, model: str, *, member: str | None = None) -> Certificate:
        """How far the served weights are from the best ones on their window."""
        return self._do(routes.certificate(model, member))

    def export(self, model: str, format: str = "json", *, member: str | None = None) -> bytes:
        """The model, or one member, as a file for another program: json, onnx, sklearn-coef, vw."""
        return self._do(routes.export(model, format, member))

    def events(self, model: str, *, every_ms: int | None = None) -> Iterator[Event]:
        """What is told of the model while it learns, until it is deleted or the server ends.

        Raises Unreachable where the stream breaks off.
        """
        path, query = model_path(model, "events"), asked(every_ms=every_ms)
        reader = EventReader()
        try:
            with self._http.stream("GET", path, params=query) as response:
                if response.status_code >= 400:
                    Call("GET", path, None).read(response.status_code, response.read())
                for line in response.iter_lines():
                    event = reader.line(line)
                    if event is not None:
                        yield event
        except httpx.TransportError as lost:
            raise Unreachable(f"the stream of events has ended: {lost}") from lost

    def ready(self) -> dict[str, Any]:
        """What the server says of itself, once it serves."""
        return self._do(routes.ready())

    # -- rows ------------------------------------------------------------------------------------

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
    ) -> Learned:
        """Learn a sample, or many, in their order; rows.py says what may be given.

        One is a row and its label, answered with its score. Many are sent `rows_per_request` at a
        time and answered with sums, a LearnedStream. Who repeats a learn that broke off gives both
        the same `key`; without one, each learn has a key of its own.
        """
        if rows.is_single(x):
            sample = rows.sample(rows.row_of(x, names), y, weight, ids)
            return self._follow(steps.learn_single(model, sample, key))
        samples = rows.samples_of(x, y, weight, ids, names)
        bodies = bodies_of(samples, rows_per_request)
        return self._follow(steps.learn_bodies(model, bodies, key, scores))

    def learn_iter(
        self,
        model: str,
        samples: Iterable[Any],
        *,
        key: str | None = None,
        scores: bool = False,
        progress: bool = False,
        on_progress: steps.OnProgress | None = None,
        rows_per_request: int = ROWS_PER_REQUEST,
    ) -> LearnedStream:
        """Learn a stream of `{"x": ..., "y": ...}` or pairs (x, y) to its end, in bounded memory.

        `progress` shows a bar in the terminal; `on_progress` is called after each request.
        """
        bodies = bodies_of(map(rows.sample_of, samples), rows_per_request)
        with ProgressBar(model) if progress else nullcontext() as bar:
            told = steps.both(bar, on_progress)
            return self._follow(steps.learn_bodies(model, bodies, key, scores, told))

    def learn_file(
        self,
        model: str,
        file: RowFile,
        *,
        skip: int = 0,
        on_progress: steps.OnProgress | None = None,
    ) -> LearnedStream:
        """Learn the rows of a file, of any format, chunk by chunk, but for the first `skip` ones.

        Who sends the same file again learns what was not learned yet.
        """
        return self._follow(steps.learn_file(model, file, skip, on_progress))

    def learn_labels(
        self, model: str, labels: Mapping[str | int, Any], *, key: str | None = None
    ) -> Learned:
        """Learn the labels of rows that were predicted with `remember`, by their ids."""
        return self._do(routes.learn_labels(model, labels, key or routes.new_key()))

    def predict(
        self,
        model: str,
        x: Any,
        *,
        names: Sequence[str] | None = None,
        min_seq: int | None = None,
        version: str | None = None,
        rows_per_request: int = ROWS_PER_REQUEST,
    ) -> Any:
        """Score a row (Predicted) or many (PredictedMany); nothing is changed.

        `min_seq` waits for the state of that seq, `version` scores by the version of this name.
        """
        query = {"min_seq": min_seq, "version": version}
        if rows.is_single(x):
            return self._follow(steps.predict_single(model, rows.row_of(x, names), query))
        bodies = bodies_of(rows.samples_of(x, names=names), rows_per_request)
        return self._follow(steps.predict_bodies(model, bodies, query))

    def predict_and_remember(
        self,
        model: str,
        x: Any,
        ids: Any,
        *,
        names: Sequence[str] | None = None,
        default_label: Any = None,
        default_after_s: float | None = None,
    ) -> PredictedMany:
        """Score rows that wait in the store for their labels, each under an id of its own."""
        query = {"default_label": default_label, "default_after_s": default_after_s}
        samples = rows.samples_of(x, ids=ids, names=names)
        return self._follow(steps.predict_waiting(model, samples, query))

    def predict_file(
        self, model: str, file: RowFile, *, min_seq: int | None = None, version: str | None = None
    ) -> Iterator[PredictedMany]:
        """Score the rows of a file, chunk by chunk; labels are passed over."""
        query = {"min_seq": min_seq, "version": version}
        for piece in file.pieces():
            yield self._follow(steps.predict_piece(model, file, piece, query))

    # -- members, versions, samples --------------------------------------------------------------

    def members(self, model: str) -> Members:
        """The members of a portfolio and their shares."""
        return self._do(routes.members(model))

    def add_member(self, model: str, spec: routes.Spec, *, key: str | None = None) -> Member:
        """Add a member, which begins on the rows that the model retains."""
        return self._do(routes.add_member(model, spec, key or routes.new_key()))

    def remove_member(self, model: str, name: str) -> None:
        """Drop a member and what it has learned."""
        self._do(routes.remove_member(model, name))

    def promote(self, model: str, name: str) -> Member:
        """Serve this member alone."""
        return self._do(routes.promote(model, name))

    def end_promotion(self, model: str) -> Members:
        """Serve all members again."""
        return self._do(routes.end_promotion(model))

    def compare(self, model: str, a: str, b: str, *, level: float = 0.95) -> Comparison:
        """Which of two members does better, and how sure that is."""
        return self._do(routes.compare(model, a, b, level))

    def take_version(self, model: str, name: str | None = None, *, note: str = "") -> Version:
        """Keep a full copy of the state."""
        return self._do(routes.take_version(model, name, note))

    def versions(self, model: str) -> Versions:
        """All versions, and how far back the journal reaches."""
        return self._do(routes.versions(model))

    def delete_version(self, model: str, name: str) -> None:
        """Delete a version."""
        self._do(routes.delete_version(model, name))

    def roll_back(
        self,
        model: str,
        *,
        version: str | None = None,
        seq: int | None = None,
        key: str | None = None,
    ) -> RolledBack:
        """Make the state what it was, by a version's name or a seq."""
        return self._do(routes.roll_back(model, version, seq, key or routes.new_key()))

    def resume(self, model: str, *, rows: str, key: str | None = None) -> Resumed:
        """Let a paused model learn on; `rows` of its quarantine: `learn` them now, or `drop`."""
        return self._do(routes.resume(model, rows, key or routes.new_key()))

    def unlearn(self, model: str, sample: str | int) -> Unlearned:
        """Unlearn a retained sample; ask again until its `status` is done."""
        return self._do(routes.unlearn(model, sample))

    # -- calls -----------------------------------------------------------------------------------

    def _do(self, call: Call[T]) -> T:
        attempts = Attempts(call, self._patience_s)
        while True:
            try:
                response = self._http.request(
                    call.method,
                    call.path,
                    params=call.query,
                    headers=call.raw_headers(),
                    content=call.body,
                )
            except httpx.TransportError as silence:
                wait_s: float | None = attempts.after_silence(silence)
            else:
                wait_s = attempts.after_answer(response)
                if wait_s is None:
                    return attempts.read(response)
            time.sleep(wait_s or 0.0)

    def _follow(self, work: steps.Steps[T]) -> T:
        step = steps.resume(work)
        while not isinstance(step, steps.Ended):
            step = steps.resume(work, self._outcome(step))
        return step.result

    def _outcome(self, call: Call[Any]) -> Any:
        try:
            return self._do(call)
        except ClientError as error:
            return error
