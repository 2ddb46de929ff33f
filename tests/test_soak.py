"""Ten seconds of `make soak`."""

import subprocess
import sys
from pathlib import Path


def test_threads_and_children_share_an_index_without_a_difference():
    command = [sys.executable, "-m", "tests.soak", "--seconds", "10"]
    done = subprocess.run(
        command, check=False, timeout=200, capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert done.returncode == 0, done.stdout + done.stderr
