"""Bash scripts of tests in which `dualstream` is a forked command.

A command of a script is a process of its own, with the descriptors, the variables and the folder of
the script. It skips the imports: half a second of CPU for each command.
"""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from tests.forked import ForkedProcess

MAX_REQUEST = 1 << 20
MAX_FILES = 64
ASK = """
import json, os, socket, sys
files = [n for n in map(int, os.listdir("/proc/self/fd")) if n < 3 or n > 9]
files = [n for n in files if os.path.exists(f"/proc/self/fd/{n}")]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
    asking.connect("\\0" + sys.argv[1])
    request = [sys.argv[2:], dict(os.environ), os.getcwd(), files]
    socket.send_fds(asking, [json.dumps(request).encode()], files)
    for n in files:
        os.close(n)
    sys.exit(int(asking.recv(9)))
"""
"""Program of `dualstream` in a script: hands over what it was given, and waits for the exit code.

Bash opens the files of `<(...)` as descriptors from 63 down.
"""


def run_script(
    script: str,
    folder: Path,
    env: dict[str, str],
    flags: tuple[str, ...] = (),
    timeout: float = 300,
) -> "subprocess.CompletedProcess[str]":
    """Run a script with the variables `env` besides this process's, in a folder."""
    with (
        ThreadPoolExecutor() as pool,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
    ):
        listening.bind("")  # Linux chooses an abstract address
        listening.listen()
        address = listening.getsockname()[1:].decode()
        pool.submit(_answer_all, listening, pool)
        function = f"dualstream() {{ {sys.executable} -IS -c '{ASK}' {address} \"$@\"; }}\n"
        try:
            return subprocess.run(
                ["bash", *flags, "-c", function + script],
                capture_output=True,
                text=True,
                timeout=timeout,
                cwd=folder,
                env=os.environ | env,
            )
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def _answer_all(listening: socket.socket, pool: ThreadPoolExecutor) -> None:
    lock = Lock()
    while True:
        try:
            asking, _ = listening.accept()
        except OSError:
            return  # the script has ended
        pool.submit(_answer, asking, lock)


def _answer(asking: socket.socket, lock: Lock) -> None:
    with asking:
        request, files, _, _ = socket.recv_fds(asking, MAX_REQUEST, MAX_FILES)
        arguments, env, folder, numbers = json.loads(request)
        inputs = dict(zip(numbers, files, strict=True))
        command = [sys.executable, "-m", "dualstream.service", *arguments]
        try:
            out, err = inputs.pop(1), inputs.pop(2)
            with lock:
                process = ForkedProcess(command, out, err, env, folder, inputs)
        finally:
            for file in files:
                os.close(file)
        asking.send(str(process.wait() % 256).encode())
