"""The command: its flags are the settings, and what it refuses it says."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
import typer
from typer.testing import CliRunner

from dualstream.service import cli, codecs
from dualstream.service.api import events
from dualstream.service.cli import settings_flags
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.codecs import row_schema
from dualstream.service.features.guard import state as guard
from dualstream.service.http import connection_limits, overload
from dualstream.service.http.body_memory import MAX_BODIES, memory_limit
from dualstream.service.journal.protocol import DEFAULT_LIMITS
from dualstream.service.replica import first_responses
from dualstream.service.server import compile_kernels
from dualstream.service.settings import (
    Settings,
    UnknownSettings,
    UnsafeBinding,
    check_binding,
    check_variables,
)
from tests.docs.documents import ROOT
from tests.forked import COMMAND, ForkedProcess
from tests.ports import free_port
from tests.support import until

DOC = (ROOT / "docs/reference/settings.md").read_text()
_, SERVE, _ = typer.main.get_group(cli.app).resolve_command(None, ["serve"])


def table(group: str) -> str:
    """The rows that docs/reference/settings.md needs for a group of settings."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        if field.json_schema_extra["group"] == group:
            default = field.default if not isinstance(field.default, bool) else int(field.default)
            shown = "unset" if default is None else f"`{default}`"
            rows.append(f"| `{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(rows)


def test_docs_list_the_settings_of_every_group():
    groups = dict.fromkeys(
        field.json_schema_extra["group"] for field in Settings.model_fields.values()
    )
    for group in groups:
        assert f"## {group}\n\n{table(group)}\n" in DOC, table(group)
    listed = re.findall(r"^\| `", DOC.partition("## Memory")[0], re.MULTILINE)
    assert len(listed) == len(Settings.model_fields) <= 35


def test_flags_are_the_settings_with_their_groups_ranges_and_defaults():
    shown = {option.name: option for option in SERVE.params if not option.hidden}
    assert set(shown) == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        assert shown[name].opts == [f"--{name.replace('_', '-')}"]
        assert shown[name].envvar == f"DUALSTREAM_{name.upper()}"
        assert shown[name].rich_help_panel == field.json_schema_extra["group"]
        assert shown[name].default == field.default
    got = CliRunner().invoke(cli.app, ["serve", "--help"], env={"COLUMNS": "160"}).output
    for text in ("Network", "[0<=x<=65535]", "[default: 8000]", "[default: (unset)]"):
        assert text in got


def test_docs_list_the_fixed_limits():
    limits = (
        codecs.RowLimits().rows,
        row_schema.MAX_NONZEROS,
        row_schema.LONGEST_NAME,
        guard.MAX_QUARANTINE_RECORDS,
        guard.MAX_QUARANTINE_BYTES,
        DEFAULT_LIMITS.max_remembered,
        DEFAULT_LIMITS.remembered_bytes,
        DEFAULT_LIMITS.max_versions,
        DEFAULT_LIMITS.max_keys,
        first_responses.MAX_KEPT_ANSWERS,
        overload.MAX_WAITING,
        connection_limits.MAX_HEAD_BYTES,
        connection_limits.MAX_CONNECTIONS,
        events.MAX_LISTENERS,
    )
    listed = DOC.partition("## Fixed limits")[2].partition("\n## ")[0]
    assert re.findall(r"\| ([\d,]+) \|$", listed, re.M) == [f"{limit:,}" for limit in limits]
    assert f"`MAX_BODY_BYTES` times {MAX_BODIES} and {memory_limit(1):,}" in listed


def test_unknown_settings_refuse_the_start(monkeypatch):
    monkeypatch.setenv("DUALSTREAM_DURABILTY", "full")
    monkeypatch.setenv("DUALSTREAM_PROT", "1")
    done = CliRunner().invoke(cli.app, ["serve", "--store", "mysql://x"])
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        "DUALSTREAM_DURABILTY is not a setting; did you mean DUALSTREAM_DURABILITY?",
        "DUALSTREAM_PROT is not a setting; did you mean DUALSTREAM_PORT?",
    ]


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("DUALSTREAM_DURABILTY", "DUALSTREAM_DURABILITY"),
        ("DUALSTREAM_STOR", "DUALSTREAM_STORE"),
        ("DUALSTREAM_KEY_FILE", "DUALSTREAM_KEYS_FILE"),
        ("DUALSTREAM_MAX_MODEL", "DUALSTREAM_MAX_MODELS"),
        ("DUALSTREAM_APIKEY", "DUALSTREAM_API_KEY"),
        ("DUALSTREAM_XYZ", "docs/reference/settings.md"),
        ("DUALSTREAM_", "docs/reference/settings.md"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(variable, hint):
    with pytest.raises(UnknownSettings) as refused:
        check_variables({variable: "x"})
    assert str(refused.value).startswith(f"{variable} is not a setting; ") and hint in str(
        refused.value
    )


def test_variables_of_other_programs_are_no_settings():
    check_variables(
        dict.fromkeys(
            (
                *("DUALSTREAM_URL", "DUALSTREAM_CPU", "DUALSTREAM_PORT"),
                # Of Kubernetes and Docker, for a service of this name.
                *("DUALSTREAM_SERVICE_HOST", "DUALSTREAM_SERVICE_PORT_HTTP"),
                *("DUALSTREAM_PORT_8000_TCP", "DUALSTREAM_PORT_8000_TCP_ADDR"),
                # And for those whose names begin with it, such as dualstream-redis.
                *("DUALSTREAM_REDIS_SERVICE_HOST", "DUALSTREAM_REDIS_SERVICE_PORT_CLIENT"),
                *("DUALSTREAM_REDIS_PORT_6379_TCP", "DUALSTREAM_REDIS_PORT_6379_TCP_PROTO"),
                *("OTHER_DURABILTY", "dualstream_x", "XDUALSTREAM_PROT"),
            ),
            "1",
        )
    )


def test_a_port_that_is_a_service_link_is_no_setting(monkeypatch):
    check_variables({"DUALSTREAM_REDIS_PORT": "tcp://10.0.0.1:6379"})
    with pytest.raises(UnknownSettings, match="DUALSTREAM_REDIS_PORT is not a setting"):
        check_variables({"DUALSTREAM_REDIS_PORT": "6379"})
    for value, code in (("tcp://10.96.0.1:8000", 0), ("8000x", 2)):
        monkeypatch.setenv("DUALSTREAM_PORT", value)
        ended = CliRunner().invoke(cli.app, ["config", "--json"])
        assert ended.exit_code == code, ended.output
        if code == 0:
            rows = {row["setting"]: row for row in json.loads(ended.stdout)}
            assert rows["DUALSTREAM_PORT"]["value"] == "8000"
            assert rows["DUALSTREAM_PORT"]["source"] == "default"


def test_no_variable_of_this_repository_is_unknown():
    files = [ROOT / name for name in ("Makefile", "Dockerfile", "docker-compose.yml")]
    for folder in ("service", "solvers", "tests", "load_tests", "examples", "deploy"):
        files += [file for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".sh")]
    text = "\n".join(file.read_text() for file in files)
    used = set(re.findall(r"(?<!_)DUALSTREAM_[A-Z0-9_]*[A-Z0-9]", text)) - {
        *("DUALSTREAM_PROT", "DUALSTREAM_XYZ", "DUALSTREAM_DURABILTY", "DUALSTREAM_STOR"),
        *("DUALSTREAM_KEY_FILE", "DUALSTREAM_MAX_MODEL", "DUALSTREAM_APIKEY"),
        "DUALSTREAM_REDIS_PORT",
    }
    assert "DUALSTREAM_DATA" in used
    check_variables(dict.fromkeys(used, ""))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_other_hosts_are_refused_without_keys(host):
    with pytest.raises(UnsafeBinding, match="DUALSTREAM_ALLOW_ANONYMOUS=1"):
        check_binding(Settings(host=host))
    check_binding(Settings(host=host, allow_anonymous=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_keys(host):
    check_binding(Settings(host=host))


def test_unsafe_host_ends_the_command_with_that_sentence(tmp_path):
    process = ForkedProcess(
        [*COMMAND, "--host", "0.0.0.0"], stderr=subprocess.PIPE, env={}, cwd=str(tmp_path)
    )
    _, errors = process.communicate(60)
    assert process.returncode == 2
    assert "refusing to bind 0.0.0.0 without API keys" in errors
    assert list(tmp_path.iterdir()) == []


def test_bad_values_are_named():
    done = CliRunner().invoke(cli.app, ["serve", "--port", "99999"])
    assert done.exit_code == 2 and "port" in done.output
    done = CliRunner().invoke(cli.app, ["serve", "--durability", "maybe"])
    assert done.exit_code == 2 and "durability" in done.output
    done = CliRunner().invoke(cli.app, ["serve", "--store", "mysql://x"])
    assert done.exit_code == 2 and "mysql" in done.output


def test_environment_is_read_and_flags_win(monkeypatch):
    monkeypatch.setenv("DUALSTREAM_SNAPSHOT_EVERY", "7")
    monkeypatch.setenv("DUALSTREAM_PORT", "1234")
    assert Settings().snapshot_every == 7
    assert settings_flags.read_settings({"port": 99}).port == 99
    assert settings_flags.read_settings({"port": 99}).snapshot_every == 7


def test_server_says_where_it_is_and_what_it_promises(tmp_path):
    store = f"sqlite:///{tmp_path / 'said.db'}"
    with ServerProcess(store, ["--durability", "full"]) as server:
        assert server.said[0] == f"Dualstream listens on {server.url}"
        assert server.said[1] == f"ready · store {store} · durability full"
        answer = httpx.get(f"{server.url}/readyz?verbose").json()
        assert answer["durability"] == "full" and answer["store"] == store
    assert server.process.returncode == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_whose_output_cannot_be_written_serves(tmp_path, workers):
    port = free_port()
    flags = ["--port", str(port), "--workers", workers, "--drain-s", "0"]
    command = [*COMMAND, *flags, "--store", f"sqlite:///{tmp_path / 'a.db'}"]
    reading, unread = os.pipe()
    os.close(reading)  # as by `| head -1`
    with open("/dev/full", "wb") as full, open(unread, "wb", closefd=False) as pipe:
        process = ForkedProcess(command, stdout=pipe if workers == "1" else full, stderr=full)
    os.close(unread)
    try:
        until(lambda: process.poll() is not None or is_ready(port), 60)
        assert process.poll() is None and is_ready(port)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()


def test_messages_that_cannot_be_written_leave_the_exit_code(tmp_path):
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        for arguments, code in (
            ("nonsense", 2),
            ("models --url http://127.0.0.1:9 --patience 0", 4),
        ):
            command = [*COMMAND[:-1], *arguments.split()]
            assert subprocess.run(command, stderr=full, env=buffered).returncode == code


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def test_closed_outputs_are_replaced_and_lost_messages_are_no_errors(tmp_path):
    code = (
        "import os, sys\n"
        "from dualstream.service.cli.common import announce, errors, open_standard_files\n"
        "assert sys.stdout is sys.stderr is None\n"
        "open_standard_files()\n"
        f"found = os.open({str(tmp_path / 'store')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "assert found > 2 and os.readlink('/proc/self/fd/1') == os.devnull\n"
        "announce('one'); errors.print('two'); print('three')\n"
        "sys.stdout = sys.stderr = open('/dev/full', 'w')\n"
        "announce('four'); errors.print('five'); print('six')\n"
        f"os.write(found, b'done')\n"
    )
    subprocess.run(["bash", "-c", '"$@" <&- >&- 2>&-', "", sys.executable, "-c", code], check=True)
    assert (tmp_path / "store").read_bytes() == b"done"


def test_durability_that_the_store_lacks_is_not_ready(tmp_path, redis_server):
    with ServerProcess(redis_server.url, ["--durability", "always"], wait=False) as server:
        server.wait_until("Dualstream listens")
        until(lambda: reason_of(server.url) != "starting")
        assert "always" in reason_of(server.url)
        refused = httpx.get(f"{server.url}/models")
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.url}/livez").status_code == 200


def reason_of(url: str) -> str:
    """Why the server is not ready."""
    answer = httpx.get(f"{url}/readyz")
    assert answer.status_code == 503
    return answer.json()["reason"]


def test_password_of_the_store_is_never_shown():
    from dualstream.service.settings import without_password

    assert without_password("redis://:secret@host:1/0") == "redis://:***@host:1/0"
    assert without_password("redis://user:secret@host/0") == "redis://user:***@host/0"
    assert without_password("sqlite:///a.db") == "sqlite:///a.db"


@pytest.mark.parametrize("origin", ["b.example", "https://b.example/"])
def test_origins_that_no_browser_sends_are_refused(origin):
    fields = {"DUALSTREAM_CORS_ORIGINS": f"https://a.example, {origin}"}
    done = CliRunner().invoke(cli.app, ["config"], env=fields)
    assert done.exit_code == 2 and "DUALSTREAM_CORS_ORIGINS: " in done.stderr
    assert f"{origin!r} is not an origin; write" in done.stderr


@pytest.fixture
def no_kernels(monkeypatch):
    """Fail if a command gets as far as to compile kernels."""
    monkeypatch.setattr(compile_kernels, "compiled_by_processes", lambda console: pytest.fail())


def test_a_store_that_can_never_work_ends_the_start(tmp_path, subtests, no_kernels):
    (tmp_path / "text").write_text("not a database, and longer than its header")
    for path, why in (
        ("missing/a.db", "missing: No such file or directory"),
        ("text/a.db", "text: Not a directory"),
        ("text", "text: not a SQLite database"),
        (".", "Is a directory"),
        ("/proc/a.db", "/proc: No such file or directory"),
        ("", "has no file name"),
    ):
        for command in (["serve"], ["serve", "--workers", "2"], ["config", "--check"]):
            with subtests.test(path=path, command=command):
                store = f"sqlite:///{path and tmp_path / path}"
                done = CliRunner().invoke(cli.app, [*command, "--port", "0", "--store", store])
                assert done.exit_code == 2 and why in done.output
    assert [one.name for one in tmp_path.iterdir()] == ["text"]


def test_a_port_in_use_ends_the_start_before_kernels_are_compiled(tmp_path, no_kernels):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ["--port", port, "--store", f"sqlite:///{tmp_path / 'a.db'}"]
        done = CliRunner().invoke(cli.app, ["serve", *flags])
    assert done.exit_code == 2
    assert done.output == f"port {port} is in use; choose another with --port\n"


def test_config_checks_what_a_start_reads(tmp_path, subtests):
    keys, store = tmp_path / "keys", f"sqlite:///{tmp_path / 'a.db'}"
    keys.write_text("half a line")
    for flags, why in (
        (["--keys-file", str(keys)], "keys, line 1"),
        (["--keys-file", str(tmp_path / "none")], "none: No such file"),
        (["--ssl-certfile", str(keys)], "TLS cannot be served"),
        (["--store", "mysql://x"], "unknown store scheme"),
        (["--host", "0.0.0.0"], "without API keys"),
        (["--adopt", "--workers", "2"], "--adopt needs a single worker"),
    ):
        with subtests.test(why):
            done = CliRunner().invoke(cli.app, ["config", "--check", "--store", store, *flags])
            assert done.exit_code == 2 and why in done.output
            assert CliRunner().invoke(cli.app, ["config", "--store", store, *flags]).exit_code == 0
    done = CliRunner().invoke(cli.app, ["config", "--check", "--store", store])
    assert done.exit_code == 0 and "DUALSTREAM_STORE" in done.output
    assert list(tmp_path.iterdir()) == [keys]


def test_an_empty_variable_is_not_an_absent_one(monkeypatch):
    served = []
    monkeypatch.setattr(
        "dualstream.service.server.serve.serve", lambda inputs, say: served.append(inputs)
    )
    monkeypatch.setattr("dualstream.service.cli.serve.check_settings", lambda inputs: None)
    monkeypatch.setattr("dualstream.service.cli.serve.listen", lambda inputs: socket.socket())

    def run(*flags: str, **environment: str) -> int:
        env = {f"DUALSTREAM_{name}": value for name, value in environment.items()}
        return CliRunner().invoke(cli.app, ["serve", *flags], env=env).exit_code

    assert run() == 0 and not served.pop().asks_for_keys
    assert run(KEYS="") == 0 and served.pop().asks_for_keys
    assert run(STORE="") == 0 and served.pop().store == ""
    refused = CliRunner().invoke(cli.app, ["config"], env={"DUALSTREAM_PORT": ""})
    assert refused.stderr.startswith("DUALSTREAM_PORT: Input should be a valid integer")
    assert run(PORT="") == 2 and run(METRICS_MAX_MODELS="") == 2 and not served
    assert run("--port", "8000", "--keys", "", PORT="9") == 0
    assert served[-1].port == 8000 and served[-1].asks_for_keys
    assert run(PORT="9") == 0 and served[-1].port == 9
