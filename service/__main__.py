"""`python -m dualstream.service` is `dualstream`."""

from dualstream.service.cli import app

app()
