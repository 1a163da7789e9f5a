"""The `dualstream` command line.

commands.py        the table of commands and their modules
common.py          output, errors and exit codes of all commands
connection.py      options and connection of commands that call a server
settings_flags.py  settings as flags

`compare`, `infer`, `serve` and `stores` need the server's dependencies. The other commands work
without them.
"""

from dualstream.service.cli.commands import app

__all__ = ["app"]
