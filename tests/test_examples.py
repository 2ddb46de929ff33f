"""Every example runs as a user would run it, and prints what it promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
ARGUMENTS = {"mnist_head.py": ("--epochs", "1", "--queries", "100"), "text_retrieval.py": ("--epochs", "1")}


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """Run an example once, and return what it printed and the directory it ran in."""
    done = {}

    def run(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(Path(name).stem)
            command = [sys.executable, str(EXAMPLES / name), *ARGUMENTS.get(name, ())]
            result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr
            done[name] = result.stdout, folder
        return done[name]

    return run


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(path, output):
    printed, _ = output(path.name)
    assert printed


def test_the_digits_are_classified(output):
    printed, _ = output("mnist_head.py")
    rights = [float(line.split("right ")[1].split("%")[0]) for line in printed.splitlines()[1:]]
    assert len(rights) == 3
    assert min(rights) >= 80


def test_both_text_encoders_have_as_many_parameters(output):
    printed, _ = output("text_retrieval.py")
    lines = [line for line in printed.splitlines() if "parameters" in line]
    sizes = [int(line.split(", ")[1].split()[0].replace(",", "")) for line in lines]
    assert len(sizes) == 2
    assert max(sizes) < 1.01 * min(sizes)
    for line in lines:
        first, tenth, hundredth = (float(part.split()[0].rstrip(",")) for part in re.split(r"recall@\d+ ", line)[1:])
        assert 0 <= first <= tenth <= hundredth <= 1


def test_every_shown_item_has_its_propensity(output):
    _, folder = output("explore_catalogue.py")
    rows = [line.split(",") for line in (folder / "propensities.csv").read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["user", "position", "item", "log_propensity"]
    assert len(rows) == 1 + 5 * 4
    assert all(float(row[3]) < 0 for row in rows[1:])


def test_sampled_training_beats_guessing(output):
    printed, _ = output("sampled_softmax.py")
    line = next(line for line in printed.splitlines() if line.startswith("cross-entropy"))
    # Guessing among 5,000 classes has a cross-entropy of 8.5.
    assert float(line.split(": ")[1]) < 7.5


def test_the_best_items_are_proven_and_survive_a_save(output):
    printed, _ = output("learned_similarity.py")
    assert "proven to be the 10 best: 100%" in printed
    assert "the same after loading: True" in printed


def test_the_best_classes_are_proven_and_survive_a_save(output):
    printed, _ = output("output_layer.py")
    assert "100% right, 100% proven" in printed
    assert "the same after loading: True" in printed


def test_an_estimate_from_a_log_has_the_trial_in_its_interval(output):
    printed, _ = output("off_policy.py")
    assert "every propensity comes out the same: True" in printed
    assert "warning" not in printed
    low, high = (float(part) for part in printed.split("interval ")[1].split("\n")[0].split(" to "))
    assert low < float(printed.split("temperature: ")[1]) < high
