"""`python -m service` is `dualstream`."""

from dualstream.service.cli import app

app()
