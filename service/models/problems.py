"""Problems that several rooms report: of a model, of the store, and of a repeated key."""

from dualstream.wire.problem_json import Problem, quoted


def unknown_model(model: str) -> Problem:
    """404 `unknown-model`."""
    detail = f"no model {quoted(model)}; GET /models lists the models, PUT /models/NAME creates one"
    return Problem(404, "unknown-model", detail)


def unreadable(reason: str, is_journalled: bool = False) -> Problem:
    """503 for one model whose journal this version cannot read; other models are served."""
    problem = Problem(503, "unreadable-journal", reason, retry_after_s=60)
    if is_journalled:
        problem.extra["outcome"] = "journalled"
    return problem


def unavailable(reason: str) -> Problem:
    """503 `store-unavailable`."""
    return Problem(503, "store-unavailable", reason, retry_after_s=1)


def key_reused() -> Problem:
    """422 for an Idempotency-Key that was used for a different request."""
    detail = "the Idempotency-Key was used for another request; send a new key"
    return Problem(422, "idempotency-key-reused", detail)
