"""The directory in which workers share counters: full, removed, damaged. None ends a worker."""

import errno
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.metrics.families import ReportFamilies
from dualstream.service.metrics.model_filter import ModelFilter
from dualstream.service.metrics.multiprocess import CountsFile, MetricsDirectory, WorkerReport
from dualstream.service.metrics.process_series import MemorySeries
from tests.service.conftest import SPEC
from tests.service.features.unlearning.support import registry_on
from tests.service.server.support import children, ready_workers, scraped
from tests.support import until

SMALL_DISK = 'mount -t tmpfs -o size="$1" none "$0" && shift && exec "$@"'


def in_small_tmp(folder: Path, size: str) -> list[str]:
    """A command prefix: the directory is a file system of this size, for this command only."""
    prefix = ["unshare", "-m", "sh", "-c", SMALL_DISK, str(folder), size]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    return prefix


def predict(server: ServerProcess, count: int) -> None:
    for _ in range(count):  # a connection of its own each time: both workers answer
        httpx.get(f"{server.url}/models/m/predict?x=1:1", timeout=60).raise_for_status()


@pytest.mark.parametrize("size", ["72k", "200k"])
def test_a_full_directory_ends_no_worker(tmp_path, size):
    small = tmp_path / "small"
    small.mkdir()
    log = tmp_path / "log"
    with log.open("w") as stderr:
        server = ServerProcess(
            f"sqlite:///{tmp_path / 'store.db'}",
            ["--workers", "2", "--metrics-max-models", "100"],
            env={"TMPDIR": str(small)},
            prefix=in_small_tmp(small, size),
            stderr=stderr,
        )
        with server:
            workers = children(server)
            for number in range(3):
                url = f"{server.url}/models/m{number}"
                httpx.put(url, json=SPEC, timeout=60).raise_for_status()
                for _ in range(4):
                    httpx.get(f"{url}/predict?x=1:1", timeout=60).raise_for_status()
            # A worker alone with its counts may have answered none of them.
            until(lambda: scraped(server).get('dualstream_predictions_total{model="m2"}', 0) > 0)
            # Which worker answers is chance, and one may be busy.
            until(lambda: scraped(server)["dualstream_metrics_shared"] < 1)
            assert sorted(children(server)) == sorted(workers)
    assert "only its own counts" in log.read_text()


def test_a_removed_directory_is_made_again(tmp_path):
    env = {"TMPDIR": str(tmp_path)}
    store = f"sqlite:///{tmp_path / 'store.db'}"
    with ServerProcess(store, ["--workers", "2"], env=env, stderr=subprocess.DEVNULL) as server:
        httpx.put(f"{server.url}/models/m", json=SPEC, timeout=60).raise_for_status()
        predict(server, 20)
        (shared,) = tmp_path.glob("dualstream-workers-*")
        remove(shared)
        predict(server, 20)
        until(lambda: scraped(server).get("dualstream_workers") == 2)
        until(lambda: all_predictions(server) == 40)
        remove(shared)
        before = children(server)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(children(server)) == 2 and children(server) != before)
        until(lambda: ready_workers(server) == 2)
        predict(server, 20)
        until(lambda: all_predictions(server) >= 20)  # the survivor's, and these
        assert shared.exists()


def remove(folder: Path) -> None:
    """Remove a folder at once: workers write files to it."""
    shutil.rmtree(folder.rename(folder.with_name("removed")), ignore_errors=True)


def all_predictions(server: ServerProcess) -> float:
    """Sum over the workers; 0 until those without a directory have made it again."""
    return scraped(server).get('dualstream_predictions_total{model="m"}', 0.0)


@pytest.mark.parametrize("damage", [b"", b"\0" * 65_536, b"\xff" * 65_536, b"short"])
def test_a_damaged_file_begins_again(tmp_path, damage):
    path = tmp_path / "counter_0.db"
    path.write_bytes(damage)
    file = CountsFile(str(path))
    file.write_value("a", 3.0, 0.0)
    assert [value for _, value, _ in file.read_all_values()] == [3.0]
    again = CountsFile(str(path))
    assert again.read_value("a") == (3.0, 0.0) and again.is_shared


def test_counts_move_to_memory_and_back(tmp_path, monkeypatch):
    file = CountsFile(str(tmp_path / "counter_0.db"))
    file.write_value("before", 1.0, 0.0)
    has_room = False
    allocate = os.posix_fallocate

    def full(descriptor, start, size):
        if not has_room:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    for number in range(3000):  # it outgrows the file
        file.write_value(f"key {number}", float(number), 0.0)
    assert not file.is_shared and list(tmp_path.glob("*.partial")) == []
    file.share_again()
    assert not file.is_shared
    has_room = True
    file.share_again()
    assert file.is_shared
    file.write_value("after", 2.0, 0.0)
    result = {key: value for key, value, *_ in CountsFile.read_all_values_from_file(file._fname)}
    result = {key.rstrip(): value for key, value in result.items()}
    assert result["before"] == 1.0 and result["after"] == 2.0 and result["key 2999"] == 2999.0
    assert len(result) == 3002


def test_nothing_written_at_its_removal_keeps_the_directory(tmp_path, monkeypatch):
    """A worker's watching thread removes the directory while its event loop writes to it."""
    shared = tmp_path / "shared"
    rmdir, makedirs = os.rmdir, os.makedirs

    def late_rmdir(*args, **more):
        with suppress(OSError):
            (shared / "worker_0.now").write_bytes(b"late")
        rmdir(*args, **more)

    def late_makedirs(*args, **more):
        metrics_dir.remove()
        makedirs(*args, **more)

    monkeypatch.setattr(os, "rmdir", late_rmdir)
    shared.mkdir()
    metrics_dir = MetricsDirectory(str(shared), 0)
    metrics_dir.remove()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(CountsFile, "open_files", [CountsFile(str(shared / "counter_0.db"))])
    monkeypatch.setattr(os, "makedirs", late_makedirs)
    metrics_dir = MetricsDirectory(str(shared), 0)
    metrics_dir.share_again()
    assert list(tmp_path.iterdir()) == []


def test_another_users_directory_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    file = CountsFile(str(tmp_path / "counter_0.db"))
    file.write_value("a", 1.0, 0.0)
    assert not file.is_shared and list(tmp_path.iterdir()) == []
    assert file.read_value("a") == (1.0, 0.0)


def test_series_are_of_the_newest_report_of_any_worker(tmp_path):
    families = ReportFamilies({"bound": "A number.", "age_seconds": "Its age."}, lambda model: None)
    for number, values in enumerate([{"m": (1.0, 5.0)}, {"m": (2.0, 3.0), "k": (4.0, 9.0)}]):
        report = WorkerReport(2, 0, 0, True, {}, [values])
        MetricsDirectory(str(tmp_path), number).publish(report)
    here = MetricsDirectory(str(tmp_path), 2)
    series = MemorySeries(registry_on(None), ModelFilter(10), here, [families])
    shown = {
        family.name: {sample.labels["model"]: sample.value for sample in family.samples}
        for family in series.collect()
        if family.name in ("dualstream_bound", "dualstream_age_seconds")
    }
    assert shown == {
        "dualstream_bound": {"m": 2.0, "k": 4.0},
        "dualstream_age_seconds": {"m": 3.0, "k": 9.0},
    }
