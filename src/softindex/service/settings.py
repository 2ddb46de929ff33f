"""What a server is told: what to serve, where, to whom, and how much of it."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

import msgspec

from softindex.arguments import check_choice, check_count, check_positive
from softindex.errors import InputError, show
from softindex.service.access import Key, read_keys

__all__ = ["KEYS_VARIABLE", "Limits", "Settings", "is_loopback", "make_settings", "read_limits"]

KEYS_VARIABLE = "SOFTINDEX_KEYS"
LOG_QUERIES = ("full", "hash")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one request, or all requests at a time, may take."""

    body_bytes: int = 8 << 20
    header_bytes: int = 16 << 10
    batch: int = 256
    """Queries in a request, and items looked up."""
    n: int = 10_000
    """Draws for each query."""
    results: int = 200_000
    """Draws, best items or probabilities of all queries of a request."""
    k: int = 10_000
    excluded: int = 100_000
    """Ids in `exclude` and `allow`, for all queries of a request."""
    in_flight: int = 8
    """Requests that wait for a worker process, or are computed by it, at a time."""
    pooled: int = 16
    """Long calls and writes that wait or run at a time, in a worker process."""
    pool_threads: int = 2
    connections: int = 1024
    """Open connections of a worker process."""
    seconds: float = 10.0
    """To send a request, to compute its answer, and to take the answer, each."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker process needs to know."""

    path: str | None = None
    """None: the demonstration catalogue."""
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    threads: int = 1
    """Of one call."""
    read_only: bool = False
    ray: str | None = None
    """Address of the Ray cluster whose shards are served."""
    keys: tuple[Key, ...] = ()
    cors: tuple[str, ...] = ()
    """Origins whose pages may call the service; none by default."""
    access_log: bool = True
    log_decisions: str | None = None
    log_queries: str = "full"
    limits: Limits = Limits()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_limits(words: list[str]) -> dict[str, float]:
    """Limits from words such as "in_flight=32"; InputError for one that does not exist or has no number."""
    found: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in Limits.__struct_fields__:
            raise InputError(f"there is no limit {show(name)}; use one of {', '.join(Limits.__struct_fields__)}.")
        try:
            found[name] = float(value) if name == "seconds" else int(value)
        except ValueError as error:
            raise InputError(f"limit {name} is {show(value)}; expected a number: {name}=NUMBER.") from error
    return found


def make_settings(*, keys_file: str | None = None, **given: object) -> Settings:
    """Check what the command line was given, before anything is opened.

    Raises:
        InputError: An option is wrong, or the address can be reached from elsewhere and there is no key.
    """
    limits = Limits(**{name: given.pop(name) for name in Limits.__struct_fields__ if name in given})  # type: ignore[arg-type]
    settings = Settings(**given, limits=limits, keys=_find_keys(keys_file))  # type: ignore[arg-type]
    check_count(settings.workers, "workers", 256)
    check_count(settings.threads, "threads", 1024)
    check_choice(settings.log_queries, "log_queries", LOG_QUERIES)
    for name in Limits.__struct_fields__:
        if name == "seconds":
            check_positive(limits.seconds, "seconds", 10.0)
        else:
            check_count(getattr(limits, name), name)
    if settings.ray is not None and (settings.workers > 1 or settings.read_only):
        raise InputError("--ray serves shards from one process; leave out --workers and --read-only.")
    if not 0 <= settings.port <= 65535:
        raise InputError(f"port is {settings.port}; expected a number from 0 to 65535, where 0 takes any free one.")
    if not settings.keys and not is_loopback(settings.host):
        raise InputError(
            f"{settings.host} can be reached from other machines, and there is no API key; pass --keys FILE or set "
            f"{KEYS_VARIABLE}, and put a reverse proxy with TLS in front, or serve on 127.0.0.1."
        )
    return settings


def _find_keys(file: str | None) -> tuple[Key, ...]:
    if file is None:
        return read_keys(os.environ.get(KEYS_VARIABLE, "").replace(",", "\n"), KEYS_VARIABLE)
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({error}); write one key per line, such as 'read KEY'.") from error
    keys = read_keys(text, file)
    if not keys:
        raise InputError(f"{file} has no keys; write one per line, such as 'read KEY' or 'write KEY'.")
    return keys
