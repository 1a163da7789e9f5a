"""`dualstream` with a small WAL: SQLite syncs it and checkpoints every few writes."""

from dualstream.service.cli import app
from dualstream.service.journal.sqlite import wal as checkpoint

checkpoint.SYNCED_WRITES = 64
checkpoint.MOVED_BYTES = 2 << 20

if __name__ == "__main__":
    app()
