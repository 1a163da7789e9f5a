"""`dualstream serve` with short timeouts of connections: HOSTILE_TIMEOUT_S seconds."""

import os

from service import app
from service.cli import app as command

app.MAX_HEAD_S = app.MAX_BODY_STEP_S = float(os.environ["HOSTILE_TIMEOUT_S"])

if __name__ == "__main__":
    command()
