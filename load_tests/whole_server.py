"""`dualstream serve` without bare learners, for the comparison in many_models."""

from service import unread
from service.cli import app

unread.MAX_BARE_SHARE = 0

if __name__ == "__main__":
    app()
