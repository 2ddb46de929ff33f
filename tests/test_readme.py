"""What the README shows runs as written."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_five_line_quickstart_runs_as_written(tmp_path):
    code = re.search(r"## Five lines\n\n```python\n(.+?)```", README.read_text(), re.DOTALL).group(1)
    assert len([line for line in code.splitlines() if line.strip()]) == 5
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"-\d+\.\d+", done.stdout)) == 10


def test_the_api_tour_runs_as_written(tmp_path, monkeypatch):
    import numpy as np

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((300, 8)).astype(np.float32)
    names = [f"item {row}" for row in range(300)]
    lines = [f"word{row} {' '.join(str(value) for value in vector)}" for row, vector in enumerate(vectors)]
    Path("glove.txt").write_text("\n".join(lines), encoding="utf-8")
    code = re.search(r"## What it does\n\n```python\n(.+?)```", README.read_text(), re.DOTALL).group(1)
    scope = {
        "np": np,
        "softindex": __import__("softindex"),
        "vectors": vectors,
        "names": names,
        "popularity": rng.random(300).astype(np.float32) + 0.1,
        "queries": vectors[:3],
        "seen": ["item 1", "item 2"],
        "ids": [["item 1", "item 2"]] * 3,
    }
    exec(code, scope)
    assert len(scope["index"]) == 300


def test_the_shell_commands_run_as_written(tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    np.save(tmp_path / "vectors.npy", rng.standard_normal((300, 3)).astype(np.float32))
    np.save(tmp_path / "queries.npy", rng.standard_normal((2, 3)).astype(np.float32))
    block = re.search(r"From the shell:\n\n```\n(.+?)```", README.read_text(), re.DOTALL).group(1)
    script = block.replace("softindex ", f"{sys.executable} -c 'from softindex.cli import main; main()' ")
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"scores"' in done.stdout
