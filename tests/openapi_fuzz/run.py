"""A run of schemathesis against a server: all phases, all checks, and the findings."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events, from_schema
from schemathesis.engine.recorder import ScenarioRecorder

from dualstream.service.http.access import requirement_of
from dualstream.service.http.api_keys import SCOPES, KeyScope

PHASES = ("examples", "coverage", "fuzzing", "stateful")
STEPS = 8
"""Most requests of a stateful scenario."""

# 503 for a `min_seq` that is not reached in time is documented, and no failure; any other 503 is
# one. The problem type distinguishes them.
PROMISED_503 = ("min-seq-not-reached",)
# A request that is valid by its schema may be refused for reasons that a schema cannot express: a
# spec with contradicting fields, a row of another width than the model's, an unknown name, a body
# that is no Arrow stream, a model that has changed. 304 answers `If-None-Match: *`. So positive
# cases may have these statuses if the route documents them, which another check verifies.
POSITIVE = "2xx 304 400 401 403 404 405 409 410 412 413 415 422 429 503".split()
# A deleted refit is cancelled and stays readable. Other checks have their defaults.
CANCELLED = {"include-operation-id": "read_refit", "checks": {"use_after_free": {"enabled": False}}}


@dataclass
class Found:
    """Findings of one or more runs.

    cases      requests of each phase
    checks     executions of each check
    statuses   answers with each status, by operation
    failures   check, operation, title -> the first request that shows the failure
    """

    cases: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def add(self, phase: str, recorder: ScenarioRecorder) -> None:
        self.cases[phase] += len(recorder.interactions)
        for case_id, interaction in recorder.interactions.items():
            label = recorder.cases[case_id].value.operation.label
            if interaction.response is None:
                self.failures.setdefault(("no answer", label, ""), str(interaction.request.uri))
                continue
            status = interaction.response.status_code
            self.statuses[label, status] += 1
            if status == 503:
                kind = msgspec.json.decode(interaction.response.content or b"{}").get("type", "")
                if kind.removeprefix("/problems/") not in PROMISED_503:
                    self.failures.setdefault(("503", label, kind), str(interaction.request.uri))
        for case_id, checks in recorder.checks.items():
            label = recorder.cases[case_id].value.operation.label
            for check in checks:
                self.checks[check.name] += 1
                if check.status is Status.SUCCESS:
                    continue
                got, title = "", check.status.value
                if check.failure_info is not None:
                    failure, sample = check.failure_info.failure, check.failure_info.code_sample
                    title, got = failure.title, f"{failure.message}\n{sample}"
                self.failures.setdefault((check.name, label, title), got)


def run(
    url: str,
    seed: int,
    examples: int,
    into: Found,
    key: str | None = None,
    phases: Sequence[str] = PHASES,
    only: Sequence[str] = (),
    scenarios: int | None = None,
) -> None:
    """Run about `examples` cases of each operation and phase, counted into `into`.

    `scenarios` follow links, by default as many. `key` is sent with each request. `only` selects
    operations by id.
    """
    config = _config(seed, examples, scenarios or examples, key, phases, only)
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            into.add(event.phase.value, event.recorder)
        elif isinstance(event, events.NonFatalError | events.FatalError):
            what = event.info if isinstance(event, events.NonFatalError) else event.exception
            label = getattr(event, "label", "")
            into.failures.setdefault(("error", label, type(event).__name__), str(what))


def wrongly_let_in(result: Found, scope: str | None) -> Iterator[tuple[str, int]]:
    """Answers, by operation and status, that a key of this scope (or none) must not get."""
    has = KeyScope.NOTHING if scope is None else SCOPES[scope]
    # Some cases replace the key by a wrong one; 400: malformed HTTP.
    refused = (400, 401) if scope is None else (400, 401, 403)
    for label, status in result.statuses:
        method, _, path = label.partition(" ")
        if requirement_of(method, path).scope > has and status not in refused:
            yield label, status


def _config(
    seed: int,
    examples: int,
    scenarios: int,
    key: str | None,
    phases: Sequence[str],
    only: Sequence[str],
) -> SchemathesisConfig:
    generation = {"max-examples": examples, "no-shrink": True, "database": "none"}
    fields: dict[str, Any] = {
        "seed": seed,
        "continue-on-failure": True,
        "request-timeout": 60,
        # A stream of events is endless; its first event comes at once.
        "max-stream-events": 1,
        # Ignore hypothesis' health checks on the speed and size of generated cases.
        "suppress-health-check": ["all"],
        "generation": generation,
        "phases": {phase: {"enabled": phase in phases} for phase in PHASES},
        "checks": {
            "positive_data_acceptance": {"expected-statuses": POSITIVE},
            "not_a_server_error": {"expected-statuses": ["1xx", "2xx", "3xx", "4xx", "503"]},
        },
        "operations": [CANCELLED],
    }
    if only:
        # With entries of operations, `schema.include` has no effect.
        fields["operations"] += [{"exclude-operation-id": list(only), "enabled": False}]
    fields["phases"]["stateful"] |= {
        "max-steps": STEPS,
        "generation": generation | {"max-examples": scenarios},
    }
    if key is not None:
        fields["auth"] = {"openapi": {"key": {"bearer": key}}}
    return SchemathesisConfig.from_dict(fields)


_TEXTS = ("application/x-ndjson", "text/csv", "text/x-vw", "text/x-libsvm")


@schemathesis.serializer(*_TEXTS, "application/vnd.apache.arrow.stream")
def _as_it_is(_: Any, value: Any) -> bytes:
    """Text and bytes as generated; other values as JSON."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(str(value))


@schemathesis.deserializer("application/x-ndjson")
def _last_line(_: Any, response: Any) -> Any:
    """The last line, because the schema of the answer is that of a line."""
    return msgspec.json.decode(response.content.splitlines()[-1])
