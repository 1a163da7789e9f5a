"""The commands of docs/reference/formats.md run as they are written there."""

import re
import sys

from dualstream.service.codecs import PARSERS
from tests.docs.documents import ROOT, Shell, session

FORMATS = (ROOT / "docs/reference/formats.md").read_text()


def test_the_commands_run_as_written(tmp_path):
    (python,) = re.findall(r"```python\n(.*?)```", FORMATS, re.DOTALL)
    script = f"{session(FORMATS)}\n{sys.executable} - <<'END'\n{python}END\n"
    shell = Shell(tmp_path)
    with shell.server:
        answers, _ = shell.run(script, tmp_path)
    created, plain, packed, csv, vw, predicted, numbered, libsvm, arrow = answers
    assert created["id"] == "formats" and numbered["id"] == "vectors"
    assert (plain["count"], packed["count"]) == (2, 1)
    assert packed["duplicates"] == [{"index": 1, "seq": 2}]
    for learned in (csv, vw, libsvm, arrow):
        assert (learned["learned"], learned["rejected"]) == (2, 0)
    assert predicted["scores"] and arrow["seq"] == 9


def test_every_format_is_described():
    for media in PARSERS:
        assert f"| `{media}`" in FORMATS, media
