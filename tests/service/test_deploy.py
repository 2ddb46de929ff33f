"""The files to deploy from fit the command that they start."""

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from softindex.cli import app

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def options_of(words):
    return [word for word in words if word.startswith("--")]


def known_options():
    command = next(one for one in app.registered_commands if one.callback.__name__ == "serve")
    names = inspect.signature(command.callback).parameters
    return {f"--{name.replace('_', '-')}" for name in names}


def test_every_option_exists():
    unit = re.search(r"^ExecStart=(.*)$", (DEPLOY / "softindex.service").read_text(), re.MULTILINE)[1]
    pod = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]["containers"][0]
    container = re.search(r"^CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)[1]
    used = options_of(shlex.split(unit)) + options_of(pod["args"]) + options_of(yaml.safe_load(container))
    assert len(used) >= 4
    assert set(used) <= known_options()


def test_probes_ask_paths_that_exist(server):
    pod = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]["containers"][0]
    for probe in ("livenessProbe", "readinessProbe"):
        assert server.client.get(pod[probe]["httpGet"]["path"]).status_code == 200


def test_the_container_does_not_run_as_root():
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    assert any(re.fullmatch(r"USER \d+", line) and line != "USER 0" for line in lines)
    assert all(":" in line for line in lines if line.startswith("FROM "))


def test_the_containerfile_passes_the_linter():
    linter = shutil.which("hadolint", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if linter is None:
        pytest.skip("hadolint is not installed: it is part of the extra dev")
    done = subprocess.run([linter, DEPLOY / "Containerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
