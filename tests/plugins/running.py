"""Runs an example of a plug-in as a user would."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "plugins"


def printed_by(name, folder):
    """The last line that an example prints, run in an empty folder."""
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / name)]
    done = subprocess.run(command, cwd=folder, env=offline, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]
