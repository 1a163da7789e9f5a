"""A few hundred cases; `make security` runs 20,000."""

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.openapi_fuzz.run import Found, run

SEED = 1
PHASES = (
    ("examples", 1, ()),
    ("coverage", 1, ("list_models", "roll_back", "read_weights", "begin_refit", "read_server")),
    ("fuzzing", 5, ("learn", "predict", "learn_late_labels", "infer", "compare_members")),
    ("stateful", 8, ()),
)


def test_what_is_served_is_as_described(tmp_path):
    result = Found()
    with ServerProcess(f"sqlite:///{tmp_path / 'd.db'}", ["--max-model-bytes", "33554432"]) as it:
        for phase, examples, only in PHASES:
            run(it.url, SEED, examples, result, phases=(phase,), only=only)
    assert not result.failures, result.failures
    assert result.cases.total() >= 250, result.cases
    # No findings are worth nothing without requests: all checks ran, and links were followed.
    assert len(result.checks) == 14 and result.cases["stateful"] >= 20
    assert result.statuses["PUT /models/{model_id}", 201] and result.statuses["GET /models", 200]
