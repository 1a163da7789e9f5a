"""rclone as an S3 server with signatures: its buckets are the folders of a folder."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNPACKED = Path(__file__).parent.parent / ".cache" / "rclone" / "rclone"
"""Where tests/fetch_tool.sh rclone puts it."""
_KEY, _SECRET = "testkey", "testsecret"


def program() -> str:
    """Path of rclone. Raises RuntimeError without it."""
    result = str(UNPACKED) if UNPACKED.exists() else shutil.which("rclone")
    if result is None:
        raise RuntimeError("no rclone: run tests/fetch_tool.sh rclone")
    return result


@contextmanager
def running_s3(folder: Path) -> Iterator[dict[str, str]]:
    """A server of the folder; the variables by which clients find it."""
    command = [program(), "serve", "s3", str(folder), "--addr", "127.0.0.1:0"]
    command += ["--auth-key", f"{_KEY},{_SECRET}", "--config", "", "--dir-cache-time", "0s"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        started = next((line for line in process.stderr if "Starting s3 server on" in line), None)
        assert started is not None, "rclone ended before it served"
        yield {
            "AWS_ENDPOINT_URL": started.partition("[")[2].partition("/]")[0],
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
        }
    finally:
        process.kill()
        process.communicate()
