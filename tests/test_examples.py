"""Every example runs, on what it makes up when it is given no data."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
ARGUMENTS = {"mnist_head.py": ("--epochs", "1", "--queries", "100")}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(path, tmp_path):
    command = [sys.executable, str(path), *ARGUMENTS.get(path.name, ())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_digits_are_classified(tmp_path):
    command = [sys.executable, str(EXAMPLES / "mnist_head.py"), "--epochs", "1", "--queries", "100"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    rights = [float(line.split("right ")[1].split("%")[0]) for line in done.stdout.splitlines()[1:]]
    assert len(rights) == 3
    assert min(rights) >= 80
