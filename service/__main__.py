"""`python -m service` is `dualstream`."""

from service.cli import app

app()
