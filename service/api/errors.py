"""The only mapping from exceptions to problem+json (RFC 9457).

Problem                     any refusal that a client sees
  raised as such by the service, or made here from the exceptions of the layers below:
  solvers.InvalidSpec       422 invalid-spec
  solvers.UnknownMember     404 unknown-member
  solvers.MemberError       409 conflict
  journal UnknownModel      404 unknown-model
  journal Conflict          409 conflict
  journal TooManyVersions   409 too-many-versions
  journal ModelChanged      409 model-changed
  journal TooManyRemembered 429 too-many-remembered
  journal OutcomeUnknown    503 outcome-unknown
  journal NotReplicated     503 not-replicated
  journal JournalUnavailable 503 store-unavailable
  journal RecordError       503 unreadable-journal
"""

from dualstream.service.journal.protocol import (
    Conflict,
    JournalError,
    JournalUnavailable,
    ModelChanged,
    NotReplicated,
    OutcomeUnknown,
    TooManyRemembered,
    TooManyVersions,
    UnknownModel,
)
from dualstream.service.journal.record import RecordError
from dualstream.solvers import InvalidSpec, MemberError, UnknownMember
from dualstream.wire.problems import MAX_ERRORS, MEDIA_TYPE, Problem, RowError, quoted

__all__ = [
    "MAX_ERRORS",
    "MEDIA_TYPE",
    "Problem",
    "RowError",
    "as_problem",
    "key_reused",
    "let_go",
    "unavailable",
    "unknown_model",
    "unreadable",
]


def unknown_model(model: str) -> Problem:
    return Problem(404, "unknown-model", f"no model {quoted(model)}")


def unreadable(reason: str, is_journalled: bool = False) -> Problem:
    """For one model whose journal this version cannot read; others are served."""
    problem = Problem(503, "unreadable-journal", reason, retry_after_s=60)
    if is_journalled:
        problem.extra["outcome"] = "journalled"
    return problem


def unavailable(reason: str) -> Problem:
    return Problem(503, "store-unavailable", reason, retry_after_s=1)


def key_reused() -> Problem:
    """Of an Idempotency-Key under which something else was asked for."""
    detail = "the Idempotency-Key was used for another request"
    return Problem(422, "idempotency-key-reused", detail)


def let_go(error: BaseException | None) -> None:
    """Forget where an error came by, once it is told.

    Its traceback holds the frames, these all that was read of the request, and some of them the
    error or its task: a ring that only the collector of rings takes apart, which comes seldom.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def as_problem(error: Exception) -> Problem | None:
    """The Problem that an exception of a lower layer means to a client, if it means one."""
    match error:
        case Problem():
            return error
        case InvalidSpec():
            pointed = RowError(0, error.field, str(error))
            return Problem(422, "invalid-spec", str(error), [pointed])
        case UnknownMember():
            return Problem(404, "unknown-member", str(error))
        case MemberError():
            return Problem(409, "conflict", str(error))
        case UnknownModel():
            return Problem(404, "unknown-model", str(error))
        case TooManyVersions():
            return Problem(409, "too-many-versions", f"{error}; delete one first")
        case ModelChanged():
            return Problem(409, "model-changed", str(error))
        case Conflict():
            return Problem(409, "conflict", str(error))
        case TooManyRemembered():
            return Problem(429, "too-many-remembered", str(error), retry_after_s=60)
        case OutcomeUnknown():
            detail = f"{error}; repeat the request with the same Idempotency-Key"
            return Problem(503, "outcome-unknown", detail, retry_after_s=1, outcome="unknown")
        case NotReplicated():
            detail = f"{error}; repeat the request with the same Idempotency-Key"
            return Problem(503, "not-replicated", detail, retry_after_s=1, outcome="journalled")
        case RecordError():
            return unreadable(str(error), error.is_journalled)
        case JournalUnavailable():
            return unavailable(str(error))
        case JournalError():
            return Problem(503, "journal-error", str(error), retry_after_s=1)
    return None
