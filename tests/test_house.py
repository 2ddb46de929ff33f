"""The limits that CONTRIBUTING.md sets: what a reader can take in at once."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WIDTH, FUNCTION, FILE, PARAMETERS = 120, 60, 400, 8
ROOMS = ("src", "benchmarks", "experiments", "examples", "tests")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
PYTHON = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
NATIVE = [path for ending in ("h", "cpp") for path in (ROOT / "native").rglob(f"*.{ending}")]


def named(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_line_of_prose_is_longer_than_the_page(page):
    # Rows of tables and addresses cannot be wrapped.
    lines = enumerate(page.read_text().splitlines(), 1)
    prose = [(number, line) for number, line in lines if not line.startswith("|") and "://" not in line]
    assert [number for number, line in prose if len(line) > WIDTH] == []


def test_files_and_functions_fit_on_a_few_screens():
    long_files = [named(path) for path in [*PYTHON, *NATIVE] if path.read_text().count("\n") > FILE]
    assert long_files == []
    long_functions = [
        f"{named(path)}: {node.name}"
        for path in PYTHON
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno + 1 > FUNCTION
    ]
    assert long_functions == []


def native_functions(text):
    """Names, parameters and lines of the functions that begin in the first column."""
    for found in re.finditer(
        r"^(?!namespace|struct|class|enum)\w[^;{}()#]*?(\w+)\(([^;{}()]*)\)[^;{}]*\{$", text, re.M
    ):
        end = text.find("\n}", found.end())
        inside = re.sub(r"<[^<>]*>", "", found.group(2))
        yield found.group(1), len(inside.split(",")), text.count("\n", found.start(), end) + 1


def test_native_functions_are_short_and_take_few_arguments():
    found = {path: list(native_functions(path.read_text())) for path in NATIVE if path.parent.name != "bindings"}
    assert sum(map(len, found.values())) > 100
    excess = [
        f"{named(path)}: {name}"
        for path, functions in found.items()
        for name, parameters, lines in functions
        if parameters > PARAMETERS or lines > FUNCTION
    ]
    assert excess == []


@pytest.mark.parametrize("path", [*PYTHON, *NATIVE], ids=named)
def test_a_file_says_at_its_top_what_it_is_for(path):
    if path.name == "__init__.py" and not path.read_text().strip():
        return
    first = path.read_text().lstrip().splitlines()[0]
    assert first.startswith(('"""', "// ", "#!")), first
