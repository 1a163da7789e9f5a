"""The process that forks worker processes. It has imported everything that a worker needs.

It has no threads, which would not survive a fork, and no event loop. This module imports nothing of
the server, so that `begin` comes before the imports of the calling process.
"""

from multiprocessing import forkserver, get_context

forks = get_context("forkserver")
forks.set_forkserver_preload(["dualstream.service.server.workers"])


def begin() -> None:
    """Start the fork server, which imports while this process imports, too."""
    forkserver.ensure_running()
