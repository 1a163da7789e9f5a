"""`dualstream serve` with short timeouts of connections: HOSTILE_TIMEOUT_S seconds."""

import os

from dualstream.service.cli import app as command
from dualstream.service.server import app

app.MAX_HEAD_S = app.MAX_BODY_STEP_S = float(os.environ["HOSTILE_TIMEOUT_S"])

if __name__ == "__main__":
    command()
