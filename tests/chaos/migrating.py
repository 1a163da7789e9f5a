"""The process of a migration, which a test kills."""

import asyncio
from multiprocessing.connection import Connection

from service import migration

# Some entries at a time, so that there is much to be cut off in.
READ_BYTES = 400


def run(of: str, to: str, began: Connection) -> None:
    """Migrate, and say so before."""
    migration.READ_BYTES = READ_BYTES
    began.send(None)
    asyncio.run(migration.run_migration(of, to))
