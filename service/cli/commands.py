"""The table of commands, and the program that runs them.

A module of commands is imported when one of them runs, so that `dualstream --help` and short
commands start at once.
"""

import errno
import io
import os
import re
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dualstream import __version__
from dualstream.service.cli import common
from dualstream.wire.printable import ESCAPES

# Name, module, first paragraph of the help; in the order of the help and of docs/reference/cli.md.
_TABLE = """\
serve serve Run the server. Flags override environment variables.
config serve Print the settings that `serve` would use with these flags, and where each comes from.
demo serve Stream the Adult data set through a temporary server and compare with two baselines.
new-key new_key Create an API key. It is shown once and stored nowhere.
create models Create a model from a spec. An existing model with the same spec is kept.
infer infer Propose the specification of a file: label, task and the type of each column.
compare compare Compare the default model on a file with LightGBM, scikit-learn and baselines.
models models List the server's models.
status show Show whether the server is ready, its store, and what is wrong. Exit code 3: not ready.
learn rows Learn the rows of files, once each, in order and in bounded memory.
observe rows Observe rows of files, which need no label: they enter the model's history, once each.
consume consume Learn the messages of a topic or a stream, each once, until SIGTERM or Ctrl-C.
predict rows Score the rows of files, or one row. Labels in the files are ignored.
show show Show a model: counts, errors, the best baseline and its specification.
metrics show Show progressive metrics: since the start, over the last 1,000 rows, and fading.
members show Show the members of a portfolio, the heaviest first.
weights show Show the largest weights of a linear model or member.
versions show List the versions of a model, or save one.
rollback change Restore an earlier state of a model. The journal keeps what was learned since.
sources change List the sources of a model: the next offset of each, its lag and counts of rows.
labels change Learn labels of rows that were predicted with `remember`, by the ids of the rows.
refit change Solve the model's window to the optimum, and let the result enter the model.
resume change End a pause of learning that the guard began.
watch watch Show a live table of models while they learn, until Ctrl-C.
certificate models Show the duality gap: how far the weights are from the optimum on their window.
columns models Show what the columns of a model's stream hold, and which have moved from their past.
audit models Show who changed models, oldest change first, including deleted models.
export models Export a model to a file, with which another program scores rows as the server does.
replay stores Compute an earlier state, or the state under another spec, from the journal.
dump stores Write a model, or a whole store, to one file: an archive.
restore stores Restore an archive of `dualstream dump` into a store.
delete models Delete a model, its journal and its versions.
"""
COMMANDS = {
    name: (module, summary)
    for name, module, summary in (line.split(maxsplit=2) for line in _TABLE.splitlines())
}
SERVER_PACKAGES = ("fastapi", "numba", "pydantic_settings", "redis", "uvicorn")
SERVER_MODULES = ("compare", "infer", "serve", "stores")


class _Commands(TyperGroup):
    """The commands; an output that cannot be written is an error message, not a traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the module of the command, which registers the command itself."""
        module, _ = COMMANDS.get(args[0], ("", ""))
        if module and module not in MISSING:
            import_module(f"dualstream.service.cli.{module}")
            self.commands = typer.main.get_group(app).commands
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """In plain text, because the import of rich's Markdown takes longer than all the rest."""
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Each with its whole summary."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.commands.items()])

    def main(self, *args: Any, **options: Any) -> Any:
        common.open_standard_files()
        if sys.__stderr__ is not None and sys.stderr is sys.__stderr__:
            # Without a buffer nothing is left to write when Python exits, which would change the
            # exit code if the disk is full.
            file: Any = io.FileIO(sys.__stderr__.fileno(), "w", closefd=False)
            sys.stderr = io.TextIOWrapper(file, sys.__stderr__.encoding, write_through=True)
        for stream in (sys.stdout, sys.stderr):
            # The encoding may be ASCII. A stream that is closed or replaced stays as it is.
            with suppress(OSError, ValueError):
                if isinstance(stream, io.TextIOWrapper):
                    stream.reconfigure(errors=ESCAPES)
        if _LINK.fullmatch(os.environ.get(_PORT, "")):  # noqa: TID251
            del os.environ[_PORT]  # noqa: TID251
        try:
            try:
                return super().main(*args, **options)
            finally:
                sys.stdout.flush()
        except SystemExit as ended:
            # The reader, such as `head`, has read enough. rich and typer call it a failure.
            if isinstance(ended.__context__, BrokenPipeError):
                ended.code = 0
            raise
        except OSError as wrong:
            if wrong.errno not in _OF_OUTPUT:
                raise
            common.discard_output()
            if wrong.errno == errno.EPIPE:
                sys.exit(0)
            common.say_error(f"the output cannot be written: {wrong.strerror}")
            sys.exit(common.WRONG)


_PORT, _LINK = "DUALSTREAM_PORT", re.compile(r"(tcp|udp|sctp)://\S+")
"""Kubernetes and Docker set this variable to such an address for a service `dualstream`. It is no
setting then."""
_OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    # Local variables in a traceback may contain API keys.
    pretty_exceptions_show_locals=False,
    help="Learn models from a stream, durably and with a certificate.",
    epilog="Exit codes: 0 done; 1 done, but some rows were refused; 2 it cannot run: wrong options,"
    " files or settings; 3 the server refused; 4 no server answered;"
    " 5 serve: workers keep ending; 130 interrupted.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dualstream {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Dualstream learns models from a stream, durably and with a certificate."""


def is_installed(package: str) -> bool:
    """Can this package be imported? Does not import it."""
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def server_is_missing() -> None:
    """Replacement of a command that needs the server's dependencies."""
    common.fail("the server is not installed: pip install 'dualstream[server]'")


MISSING = () if all(map(is_installed, SERVER_PACKAGES)) else SERVER_MODULES
# Accept every argument, also --help, and print the message.
ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
# The module of a command replaces it.
for name, (module, summary) in COMMANDS.items():
    is_missing = module in MISSING
    app.command(
        name,
        help="Not installed: needs `pip install 'dualstream[server]'`." if is_missing else summary,
        context_settings=ANY_ARGUMENTS if is_missing else None,
    )(server_is_missing)
