"""Every command behind a page of results is one that its experiment understands, and has a place in the page."""

import argparse
import importlib
import re
import sys
from pathlib import Path

import pytest

from experiments import publish
from experiments.harness.command import rated

DOCS = Path(__file__).parent.parent.parent / "docs"
COMMANDS = [
    pytest.param(command, id=" ".join(command[1:4]))
    for page in publish.PAGES
    for command in publish.commands(page, Path("data"), Path("runs"), DOCS)
]


class ParsedError(Exception):
    pass


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command, monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def stop(self, *arguments):
        raise ParsedError(parse(self, *arguments))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(sys, "argv", command[1:])
    module = importlib.import_module(command[1])
    with pytest.raises(ParsedError) as parsed:
        module.main()
    known = getattr(module, "METHODS", None)
    names = getattr(parsed.value.args[0], "methods", None)
    if known is not None and names is not None:
        # Learned codebooks are a method of recommendation only.
        assert {rated(name)[0] for name in names.split(",")} <= known.keys() | {"learned"}


@pytest.mark.parametrize("page", publish.PAGES)
def test_a_page_names_its_command_and_has_the_marks(page):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert f"python -m experiments.publish {page}" in " ".join(text.split())
    for mark in re.findall(r"<!-- (\S+): begin -->", text):
        assert f"<!-- {mark}: end -->" in text
