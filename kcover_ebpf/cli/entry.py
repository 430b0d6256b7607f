"""Runs a click command and returns an exit code: one line on stderr for every error, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import click

from kcover_ebpf.errors import CannotObserve, KcoverError

_EXIT_INTERNAL = 70
_EXIT_INTERRUPTED = 130
# click 8.1 shows the help without an error
_NO_ARGUMENTS: type[click.ClickException] | tuple[()] = getattr(
    click.exceptions, "NoArgsIsHelpError", ()
)
# glibc's dlopen, as Python's ImportError has it
_NO_LIBRARY = ": cannot open shared object file"


def call(
    command: click.Command,
    name: str,
    arguments: Sequence[str] | None,
    message_of: Callable[[KcoverError], str] = str,
) -> int:
    """Run a command under its `name`; `message_of` formats our errors. `arguments` None: those of the process."""
    _open_closed_streams()
    try:
        code = command.main(
            args=None if arguments is None else list(arguments),
            prog_name=name,
            standalone_mode=False,
        )
    except KcoverError as error:
        return _fail(name, message_of(error), error.exit_code)
    except click.ClickException as error:
        if isinstance(error, _NO_ARGUMENTS):
            error.show()
            return error.exit_code
        return _fail(name, _with_hint(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - a traceback helps no user
        library, missing, _ = str(error).partition(_NO_LIBRARY)
        if isinstance(error, ImportError) and missing:
            name_of_it = library.rpartition(" ")[2]
            text = f"{name_of_it} is missing on this system: install the package that contains it"
            return _fail(name, text, CannotObserve.exit_code)
        from kcover_ebpf.output.log_lines import blame

        return _fail(name, f"internal error, please report it: {blame(error)}", _EXIT_INTERNAL)
    return code if isinstance(code, int) else 0


def _open_closed_streams() -> None:
    """Open /dev/null as each standard stream that was closed when we were started (`>&-`), for us and our children.

    Otherwise the next file that we open gets its number, and is written to as if it were the stream.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - kept to the end
            setattr(sys, name, stream)


def _with_hint(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if context else message


def _fail(name: str, message: str, code: int) -> int:
    from kcover_ebpf.output.formatting import printable

    # names in files and clusters come from jobs, and could command a terminal
    print(f"{name}: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code
