"""Names and values of rows on a terminal: escaped, without markup, and in any encoding."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from hypothesis import given, strategies as st
from typer.testing import CliRunner

from dualstream.client import Client
from dualstream.service.cli import app
from dualstream.wire.printable import ESCAPES, printable, printable_json, printable_lines

HOSTILE = "\x1b[2J\x1b]0;x\x07\x9b2J\u202e[/b][red]\u20ac"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@given(st.text())
def test_a_printable_text_has_no_control_characters_and_keeps_all_others(text):
    for shown in (printable(text), printable_lines(text)):
        assert not CONTROLS.search(shown)
        shown.encode()
    assert "\n" not in printable(text) and printable_lines(text).count("\n") == text.count("\n")
    if (
        not CONTROLS.search(text)
        and "\n" not in text
        and text.encode(errors="replace").decode() == text
    ):
        assert printable(text) == text
    document = json.dumps(text, ensure_ascii=False)
    assert json.loads(printable_json(document)) == text
    assert not CONTROLS.search(printable_json(document))
    assert json.loads(json.dumps(text).encode("ascii", ESCAPES)) == text
    assert json.loads(document.encode("ascii", ESCAPES)) == text


def test_no_command_prints_the_control_characters_of_a_row(shared_server, tmp_path: Path):
    rows = [{"y": k % 2, HOSTILE: f"{HOSTILE}{k % 3}", "n": k} for k in range(60)]
    file, bad = tmp_path / "rows.ndjson", tmp_path / "[b].ndjson"
    file.write_text("\n".join(map(json.dumps, rows)))
    bad.write_text("\n".join(json.dumps(row | {"n": HOSTILE}) for row in rows))
    url = ["--url", shared_server.url, "--patience", "0"]
    with Client(shared_server.url) as client:
        client.create("hostile", {"columns": {"types": {"n": "number"}}})
        try:
            shown = []
            for command, code in (
                (["learn", "hostile", str(file), *url, "--progress"], 0),
                (["learn", "hostile", str(bad), *url, "--progress"], 3),
                (["weights", "hostile", *url], 0),
                (["weights", "hostile", *url, "--json"], 0),
                (["columns", "hostile", *url], 0),
                (["versions", "hostile", "--take", "v", "--note", HOSTILE, *url], 0),
                (["infer", str(file)], 0),
                (["show", "hostile", *url], 0),
            ):
                ended = CliRunner().invoke(app, command)
                assert ended.exit_code == code, ended.output
                assert not CONTROLS.search(ended.output), (command, ended.output)
                shown.append(ended.output)
            assert "\\x1b[2J" in shown[2] and "[/b][red]\u20ac" in shown[2]
            assert "\\x1b[2J" in shown[1] and "[/b][red]\u20ac" in shown[4]
            environment = os.environ | {"PYTHONIOENCODING": "ascii"}
            command = [sys.executable, "-m", "dualstream.service", "weights", "hostile", *url]
            ended = subprocess.run(command, capture_output=True, env=environment, check=True)
            assert b"[red]\\u20ac" in ended.stdout and ended.stderr == b""
        finally:
            client.delete("hostile")
