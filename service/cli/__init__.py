"""The `dualstream` command; common.py holds what its groups share.

serving.py   serve, demo
stores.py    migrate, replay
"""

from service.cli import serving, stores
from service.cli.common import app

__all__ = ["app", "serving", "stores"]
