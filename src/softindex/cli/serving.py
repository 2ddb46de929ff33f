"""The command that serves an index over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from softindex.cli.options import app
from softindex.cli.printing import print_line
from softindex.errors import InputError
from softindex.optional import need

__all__: list[str] = []

Path_ = Annotated[
    Path | None, typer.Argument(metavar="[PATH]", help="A saved index, a catalogue, or a learned-similarity index.")
]

Ray_ = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Serve the shards at PATH from this Ray cluster, such as auto.")
]
Limit_ = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=NUMBER", help="Change a limit that /v1/info lists, such as in_flight=32; repeatable."),
]


@app.command()
def serve(
    path: Path_ = None,
    *,
    demo: Annotated[bool, typer.Option("--demo", help="Serve a made-up catalogue of named things.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs API keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 8080,
    keys: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File of API keys, one per line: 'read KEY' or 'write KEY'. Without it, the variable SOFTINDEX_KEYS, "
            "such as read:KEY,write:KEY.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Worker processes; they share the mapped files of the index.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of one call.")] = 1,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Follow a catalogue that another process writes.")
    ] = False,
    ray: Ray_ = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Origin whose pages may call the service; may be repeated."),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="Write one line of JSON per request to stderr.")
    ] = True,
    log_decisions: Annotated[
        str | None, typer.Option(metavar="DIR", help="Log every draw with its propensity in Parquet files there.")
    ] = None,
    log_queries: Annotated[str, typer.Option(help="What that log keeps of a query: full, or hash.")] = "full",
    limit: Limit_ = None,
) -> None:
    """Serve draws, probabilities and the best items over HTTP, and a page to try them on.

    SIGTERM answers what has begun and ends. A newly saved index, or SIGHUP, replaces the one that is served.
    """
    if (path is None) != demo or (demo and ray is not None):
        raise InputError("say what to serve: the path of an index or a catalogue, or --demo.")
    service = _service()
    settings = service.make_settings(
        path=None if path is None else str(path),
        host=host,
        port=port,
        keys_file=keys,
        workers=workers,
        threads=threads,
        read_only=read_only,
        ray=ray,
        cors=tuple(cors or ()),
        access_log=access_log,
        log_decisions=log_decisions,
        log_queries=log_queries,
        **service.read_limits(limit or []),
    )
    code: int = service.serve(settings, _announce)
    raise typer.Exit(code)


def _service() -> Any:
    return need("softindex.service", user="softindex serve", extra="serve")


def _announce(url: str) -> None:
    print_line(f"serving on {url}; open it in a browser to try it, and press Ctrl-C to stop")
