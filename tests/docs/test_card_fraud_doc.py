"""The commands and programs of docs/guides/card-fraud.md, in their order."""

import re
import sys

import pytest

from dualstream.solvers.jit import DISABLED
from tests.docs.documents import DOCUMENTS, Shell, assert_printed, program_of, session

GUIDE = "docs/guides/card-fraud.md"


@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
def test_the_guide_ends_with_the_alerts_of_a_day(tmp_path):
    program = program_of("card-fraud").replace("127.0.0.1:8000", "localhost:8000")
    script = f'python() {{ {sys.executable} "$@"; }}\n{session(DOCUMENTS[GUIDE])}'
    script += f"python - <<'END'\n{program}END\n"
    shell = Shell(tmp_path)
    with shell.server:
        answers, said = shell.run(script, tmp_path)
    shown = re.search(r"```\n(tx,at,.*?)```", DOCUMENTS[GUIDE], re.DOTALL).group(1)
    assert shown in said
    served, labelled = answers
    names = [one["name"] for one in served["explanation"]["contributions"]]
    assert served["probability"] > 0.5 and served["alert"] and "card.amount.difference.1d" in names
    assert labelled["learned"] == 1
    assert_printed(program, said)
    alerts = re.findall(r"^(0\.\d{3}) t\d+ 2024-01-27T.* ([01])$", said, re.MULTILINE)
    hits, count = map(int, re.search(r"(\d+) of the (\d+) alerts are frauds", said).groups())
    assert 5 <= len(alerts) == count <= 15
    assert hits == sum(fraud == "1" for _, fraud in alerts) >= 3
