"""The command line: parse arguments, call the library, print the result."""

from __future__ import annotations

import os
import sys

import typer

# Each of these adds its commands to the application, in this order.
from softindex.cli import building, drawing, evaluating  # noqa: F401
from softindex.cli.options import app
from softindex.errors import InputError, MissingDependencyError, StorageError

__all__ = ["app", "main"]

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 3
EXIT_STORAGE = 4


def main() -> None:
    """Run the command line; an error of the library becomes one sentence on stderr and a fixed exit code."""
    try:
        app()
    except BrokenPipeError:
        # The reader of our output closed the pipe, as `head` does; that is no error. Do not flush it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (InputError, MissingDependencyError) as error:
        _fail(error, EXIT_BAD_INPUT)
    except StorageError as error:
        _fail(error, EXIT_STORAGE)
    except MemoryError:
        _fail("this does not fit into memory; pass fewer items, queries or draws.", EXIT_BAD_INPUT)
    except OSError as error:
        _fail(f"the output could not be written ({error.strerror}).", EXIT_FAILURE)


def _fail(sentence: object, code: int) -> None:
    typer.echo(f"softindex: {sentence}", err=True)
    # What is left in the buffer could not be written either; do not try again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
