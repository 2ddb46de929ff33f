"""What the README and the pages of the documentation show runs as written, and prints what they say.

The blocks of a page run in order, in one namespace and one folder.  A ```text block is what the block before it prints.
"""

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "index",
            "quickstart",
            "guide-sampling",
            "guide-live",
            "guide-serving",
            "guide-decisions",
            "guide-distributed",
            "choosing-a-method",
            "reading-an-audit",
            "guide-adaptive",
            "guide-training",
            "guide-learned-similarity",
        )
    ),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DECIMAL = re.compile(r"-?\d+\.(\d+)")


def blocks_of(page):
    return FENCE.findall((ROOT / page).read_text(encoding="utf-8"))


def given_to(page):
    """The README talks of data that the reader has; the other pages make their own."""
    if page != "README.md":
        return {}
    rng = np.random.default_rng(0)
    words = rng.standard_normal((300, 8)).astype(np.float32)
    lines = [f"word{row} {' '.join(str(value) for value in vector)}" for row, vector in enumerate(words)]
    Path("glove.txt").write_text("\n".join(lines), encoding="utf-8")
    np.save("vectors.npy", rng.standard_normal((300, 3)).astype(np.float32))
    np.save("queries.npy", rng.standard_normal((2, 3)).astype(np.float32))
    np.save("traffic.npy", rng.standard_normal((20, 3)).astype(np.float32))
    return {
        "names": [f"item {row}" for row in range(100_000)],
        "popularity": rng.random(100_000).astype(np.float32) + 0.1,
        "queries": rng.standard_normal((3, 64)).astype(np.float32),
        "traffic": rng.standard_normal((20, 64)).astype(np.float32),
        "seen": ["item 1", "item 2"],
        "in_stock": [f"item {row}" for row in range(0, 100_000, 3)],
        "ids": [["item 1", "item 2"]] * 3,
    }


def run_python(code, scope):
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "<block>", "exec"), scope)
    return printed.getvalue()


def run_shell(code, commands):
    """Run the commands; of those that make runs, which set up an environment, only see that make knows them."""
    script = re.sub(r"^make (.*)$", rf"make -n -C '{ROOT}' > make.log \1", code, flags=re.MULTILINE)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


def assert_prints(printed, said):
    """Decimals may differ by two units of the last digit, as logarithms do between systems; all else is equal."""
    lines, expected = ("\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (printed, said))
    assert DECIMAL.sub("#", lines) == DECIMAL.sub("#", expected), printed
    for number, wanted in zip(DECIMAL.finditer(lines), DECIMAL.finditer(expected), strict=True):
        assert abs(float(number[0]) - float(wanted[0])) <= 2.1 * 10.0 ** -len(wanted[1]), printed


@pytest.fixture
def commands(tmp_path):
    """A folder with the command softindex of the Python that runs the tests."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "softindex"
    command.write_text(f"#!{sys.executable}\nfrom softindex.cli import main\n\nmain()\n", encoding="utf-8")
    command.chmod(0o755)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_written(page, commands, tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    scope, printed = given_to(page), None
    for language, text in blocks_of(page):
        if language == "python":
            printed = run_python(text, scope)
        elif language == "shell":
            printed = run_shell(text, commands)
        else:
            # Any other language would be a block that nobody runs.
            assert language == "text", f"{page} has a block of {language or 'no language'}"
            assert printed is not None, f"{page} has output that no block prints"
            assert_prints(printed, text)
            printed = None


def test_the_readme_starts_with_five_lines_that_print_ten_draws():
    language, code = blocks_of("README.md")[0]
    assert language == "python"
    assert len([line for line in code.splitlines() if line.strip()]) == 5
    scope = {}
    assert len(re.findall(r"-\d+\.\d+", run_python(code, scope))) == 10
    # The pages name the error that the lines print.  Clusters differ between machines, and the error with them.
    assert code in [block for _, block in blocks_of("docs/quickstart.md")]
    for page, words in (("README.md", "This example prints "), ("docs/quickstart.md", "the number is ")):
        said = " ".join((ROOT / page).read_text(encoding="utf-8").split()).partition(words)[2]
        assert abs(float(re.match(r"\d\.\d+", said)[0]) - scope["draws"].error) < 0.02


def test_output_that_differs_is_noticed():
    assert_prints("shape (3, 5)\nvalue 0.12341\n", "shape (3, 5)\nvalue 0.1234\n")
    for other in ("shape (3, 6)\nvalue 0.1234", "shape (3, 5)\nvalue 0.1334", "shape (3, 5)"):
        with pytest.raises(AssertionError):
            assert_prints("shape (3, 5)\nvalue 0.12341\n", other)
