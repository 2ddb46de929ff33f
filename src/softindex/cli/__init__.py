"""The command line: parse arguments, call the library, print the result."""

from __future__ import annotations

import io
import os
import sys
import warnings

# Each of these adds its commands to the application, in this order.
from softindex.cli import building, calibrating, drawing, evaluating, live, serving  # noqa: F401
from softindex.cli.options import app
from softindex.cli.printing import print_error
from softindex.errors import InputError, MissingDependencyError, SoftindexError, StorageError

__all__ = ["app", "main"]

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_BAD_INPUT = 3
EXIT_STORAGE = 4
EXIT_INTERRUPTED = 130
"""What a shell reports for a command that Ctrl-C ended."""


def main() -> None:
    """Run the command line; an error becomes one sentence on stderr and a fixed exit code."""
    _hold_standard_streams()
    code = EXIT_FAILURE
    try:
        code = _run()
    finally:
        # What is left in the buffer could not be written; do not try again at exit.
        if code and sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def _run() -> int:
    with warnings.catch_warnings():
        warnings.showwarning = _show_note
        return _run_command()


def _show_note(message: Warning | str, *_: object, **__: object) -> None:
    """Print a note of the library as one line on stderr."""
    print_error(f"note: {message}")


def _run_command() -> int:
    try:
        if sys.stdout is None:
            return _failed("standard output is closed; send it to a file, or to /dev/null.", EXIT_FAILURE)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal without Unicode shows an id escaped instead of ending in an error.
            sys.stdout.reconfigure(errors="backslashreplace")
        code = app(sys.argv[1:] or ["--help"], prog_name="softindex", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (BrokenPipeError, SystemExit):
        # The reader of our output closed the pipe, as `head` does; that is no error.  typer and rich turn it into
        # SystemExit, and nothing else does while typer is not in standalone mode.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (InputError, MissingDependencyError) as error:
        return _failed(error, EXIT_BAD_INPUT)
    except StorageError as error:
        return _failed(error, EXIT_STORAGE)
    except MemoryError:
        return _failed("this does not fit into memory; pass fewer items, queries or draws.", EXIT_BAD_INPUT)
    except OSError as error:
        return _failed(f"the output could not be written ({error.strerror}); send it elsewhere.", EXIT_FAILURE)
    except KeyboardInterrupt:
        return _failed("interrupted.", EXIT_INTERRUPTED)
    except Exception as error:
        return _failed_otherwise(error)


def _failed_otherwise(error: Exception) -> int:
    # The parser's errors; their classes moved between the releases of typer.
    if hasattr(error, "format_message"):
        command = getattr(getattr(error, "ctx", None), "command_path", "softindex")
        return _failed(f"{error.format_message().rstrip('.')}; see {command} --help.", EXIT_USAGE)
    if isinstance(error, SoftindexError):
        return _failed(error, EXIT_FAILURE)
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return _failed("the system refused to start another thread; pass fewer with --threads.", EXIT_FAILURE)
    raise error


def _failed(sentence: object, code: int) -> int:
    print_error(sentence)
    return code


def _hold_standard_streams() -> None:
    """Open /dev/null in place of closed standard streams: the next file opened would take their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
