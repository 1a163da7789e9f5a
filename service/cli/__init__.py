"""The `dualstream` command; common.py holds what its groups share.

serving.py     serve, demo
audit.py       audit
models.py      models, create, delete, certificate
rows.py        learn, predict; row_files.py: the files that are meant
exporting.py   export
watching.py    watch
bench.py       bench
archives.py    dump, restore
stores.py      replay
keys.py        new-key
connecting.py  how commands reach a server, and how they end
"""

from service.cli import (
    archives,
    audit,
    bench,
    exporting,
    keys,
    models,
    rows,
    serving,
    stores,
    watching,
)
from service.cli.common import app

__all__ = [
    "app",
    "archives",
    "audit",
    "bench",
    "exporting",
    "keys",
    "models",
    "rows",
    "serving",
    "stores",
    "watching",
]
