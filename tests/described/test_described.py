"""Some hundred cases of what `make security` makes 20,000 of."""

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.described.run import Found, run

SEED = 1
PHASES = (
    ("examples", 1, ()),
    ("coverage", 1, ("list_models", "roll_back", "read_weights", "begin_refit", "read_server")),
    ("fuzzing", 5, ("learn", "predict", "learn_late_labels", "infer", "compare_members")),
    ("stateful", 8, ()),
)


def test_what_is_served_is_as_described(tmp_path):
    found = Found()
    with ServerProcess(f"sqlite:///{tmp_path / 'd.db'}", ["--max-model-bytes", "33554432"]) as it:
        for phase, examples, only in PHASES:
            run(it.url, SEED, examples, found, phases=(phase,), only=only)
    assert not found.failures, found.failures
    assert found.cases.total() >= 250, found.cases
    # Nothing is found where nothing is asked: all checks were made, and links were followed.
    assert len(found.checks) == 14 and found.cases["stateful"] >= 20
    assert found.statuses["PUT /models/{model_id}", 201] and found.statuses["GET /models", 200]
