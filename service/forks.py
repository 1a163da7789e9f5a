"""Where worker processes come from: a process that has imported all that they need.

It has no threads, which would not survive a fork, and no event loop; so a worker is there in a
fraction of what its imports take, at the start as when it takes the place of one that died.
"""

from multiprocessing import forkserver, get_context

forks = get_context("forkserver")
forks.set_forkserver_preload(["service.workers"])


def begin() -> None:
    """Let that process begin to import, while this one does the same."""
    forkserver.ensure_running()
