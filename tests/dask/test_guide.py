"""The Python blocks of the guide of Dask run as written, on the cluster that the tests share."""

from types import SimpleNamespace

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.docs.documents import assert_printed, program_of


def test_the_blocks_run_as_written(cluster, tmp_path, monkeypatch, capsys):
    asked = []

    def shared(**given):
        asked.append(given)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr("dask.distributed.Client", shared)
    program = program_of("dask")
    with ServerProcess(f"sqlite:///{tmp_path / 'guide.db'}") as server:
        here = program.replace("http://127.0.0.1:8000", server.url)
        scope = {"__name__": "__main__"}
        exec(here, scope)
        scope["client"].close()
    assert_printed(program, capsys.readouterr().out)
    # The cluster that the guide asks for is the one of conftest.py.
    assert asked == [{"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}]
