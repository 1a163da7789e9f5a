"""The `dualstream` command line.

common.py          options, output, errors and exit codes of all commands
show.py            status, show, metrics, members, weights, versions
change.py          rollback, sources, labels, refit, resume
models.py          models, create, delete, certificate, export, audit
rows.py            learn, predict, and their file arguments
watch.py           watch
consume.py         consume
new_key.py         new-key
serve.py           serve, config, demo
stores.py          dump, restore, replay
infer.py           infer
settings_flags.py  settings as flags

`infer`, `serve` and `stores` need the server's dependencies. The other commands work without
them.
"""

from importlib.util import find_spec

from dualstream.service.cli import change, consume, models, new_key, rows, show, watch
from dualstream.service.cli.common import app, fail

__all__ = ["app", "change", "consume", "models", "new_key", "rows", "show", "watch"]

SERVER_PACKAGES = ("fastapi", "numba", "pydantic_settings", "redis", "uvicorn")
SERVER_COMMANDS = ("serve", "config", "infer", "demo", "dump", "restore", "replay")


def is_installed(package: str) -> bool:
    """Can this package be imported? Does not import it."""
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def server_is_missing() -> None:
    """Replacement of a command that needs the server's dependencies."""
    fail("the server is not installed: pip install 'dualstream[server]'")


if all(map(is_installed, SERVER_PACKAGES)):
    from dualstream.service.cli import infer, serve, stores

    __all__ += ["infer", "serve", "stores"]
else:
    for command in SERVER_COMMANDS:
        app.command(
            command,
            help="Not installed: needs `pip install 'dualstream[server]'`.",
            # Accept every argument, also --help, and print the message.
            context_settings={
                "allow_extra_args": True,
                "ignore_unknown_options": True,
                "help_option_names": [],
            },
        )(server_is_missing)
