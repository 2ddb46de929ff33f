"""Who may do what: API keys with a role, compared in constant time and never logged."""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from softindex.errors import InputError
from softindex.service.problems import Problem

__all__ = ["Key", "check_access", "check_host", "read_keys"]

ROLES = ("read", "write")
SHORTEST = 16
"""Characters of a key: fewer can be guessed."""
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Key(msgspec.Struct, frozen=True):
    """The hash of an API key, and what it allows: "write" includes "read"."""

    role: str
    digest: bytes


def read_keys(text: str, source: str) -> tuple[Key, ...]:
    """Keys from lines such as `read KEY` or `write:KEY`; blank lines and those that begin with # are ignored."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace(":", " ", 1).split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in ROLES:
            raise InputError(f"line {number} of {source} is not 'read KEY' or 'write KEY'; fix or remove it.")
        if len(words[1]) < SHORTEST:
            raise InputError(f"the key in line {number} of {source} has fewer than {SHORTEST} characters; use more.")
        keys.append(Key(words[0], _digest(words[1].encode())))
    return tuple(keys)


def check_access(keys: tuple[Key, ...], header: bytes | None, role: str) -> None:
    """Refuse a request whose Authorization header has no key of this role; without keys everybody may do everything."""
    if not keys:
        return
    scheme, _, given = (header or b"").partition(b" ")
    found = None
    if scheme.lower() == b"bearer" and given:
        digest = _digest(given.strip())
        # Every key is compared: how long this takes says nothing about which one came close.
        for key in keys:
            if hmac.compare_digest(digest, key.digest) and found != "write":
                found = key.role
    if found is None:
        raise Problem(
            401,
            "access",
            "an API key is needed; send it as 'Authorization: Bearer KEY'.",
            {"www-authenticate": "Bearer"},
        )
    if role == "write" and found != "write":
        raise Problem(403, "access", "this API key may only read; use one with the role 'write'.")


def check_host(header: bytes | None) -> None:
    """Refuse a request that was not addressed to this machine by a local name.

    A web page may point a name of its own at 127.0.0.1, and so call a server that only local programs should reach.
    """
    name = (header or b"").decode("latin-1").lower()
    if not name.endswith("]"):
        head, _, port = name.rpartition(":")
        name = head if port.isdigit() and head else name
    if name not in LOCAL_NAMES:
        raise Problem(
            421, "host", "this server has no API keys and answers to localhost and 127.0.0.1 only; use such a URL."
        )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
