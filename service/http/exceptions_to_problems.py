"""Mapping from exceptions to problem+json (RFC 9457). There is no other mapping."""

import logging

from starlette.types import Scope

from dualstream.service.concurrency import drop_traceback
from dualstream.service.journal import protocol as journal
from dualstream.service.journal.record import RecordError
from dualstream.service.models.problems import unavailable, unreadable
from dualstream.solvers import InvalidSpec, MemberError, UnknownMember
from dualstream.wire.problem_json import Problem, RowError

log = logging.getLogger("dualstream.http")

_REPEAT = "repeat the request with the same Idempotency-Key or Dualstream-Source"


def as_problem(error: Exception) -> Problem | None:
    """The Problem for an exception; None for an unexpected exception."""
    match error:
        case Problem():
            return error
        case InvalidSpec():
            wrong = [RowError(0, one.field, str(one)) for one in error.violations]
            return Problem(422, "invalid-spec", str(error), wrong)
        case UnknownMember():
            return Problem(404, "unknown-member", str(error))
        case MemberError():
            return Problem(409, "conflict", str(error))
        case journal.UnknownModel():
            return Problem(404, "unknown-model", str(error))
        case journal.TooManyVersions():
            return Problem(409, "too-many-versions", f"{error}; delete one first")
        case journal.ModelChanged():
            return Problem(409, "model-changed", str(error))
        case journal.Conflict():
            return Problem(409, "conflict", str(error))
        case journal.TooManyPendingRows():
            return Problem(429, "too-many-remembered", str(error), retry_after_s=5)
        case journal.OutcomeUnknown():
            detail = f"{error}; {_REPEAT}"
            return Problem(503, "outcome-unknown", detail, retry_after_s=1, outcome="unknown")
        case journal.NotReplicated():
            detail = f"{error}; {_REPEAT}"
            return Problem(503, "not-replicated", detail, retry_after_s=1, outcome="journalled")
        case RecordError():
            return unreadable(str(error), error.is_journalled)
        case journal.JournalUnavailable():
            return unavailable(str(error))
        case journal.JournalError():
            return Problem(503, "journal-error", str(error), retry_after_s=1)
    return None


def internal_error() -> Problem:
    return Problem(500, "internal-error", "the server failed; its log has the reason")


def problem_of(error: Exception, scope: Scope) -> Problem:
    """The Problem of an exception. Logs unexpected exceptions and returns 500 for them."""
    problem = as_problem(error)
    if problem is None:
        log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
        problem = internal_error()
    drop_traceback(error)
    return problem
