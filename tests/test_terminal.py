"""The command line in a terminal and a shell: names are shown as they are, and every failure has an exit code."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import softindex
from softindex import cli
from softindex.errors import printable, show

SHOWN = {
    "[unused136]": "[unused136]",
    ":apple:25": ":apple:25",
    "i1[/oops]": "i1[/oops]",
    "\x1b[31mred": r"\x1b[31mred",
    "two\nlines": r"two\nlines",
    "a\tb": r"a\tb",
    "\u202eback": r"\u202eback",
    "\ud800": r"\ud800",
    "[b]é": "[b]é",
}
HOSTILE = list(SHOWN)
COMMAND = [sys.executable, "-c", "from softindex.cli import main; main()"]


def run(*arguments, **options):
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8", **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminal")
    rows = np.random.default_rng(0).standard_normal((len(HOSTILE), 4), dtype=np.float32)
    softindex.build(rows, ids=HOSTILE, clusters=2).save(folder / "names")
    softindex.build(rows).save(folder / "numbers")
    np.save(folder / "rows.npy", rows)
    return folder


def test_ids_reach_a_table_as_they_are_and_control_characters_escaped(folder):
    for arguments in (("top-k", "-k", len(HOSTILE)), ("sample", "-t", 9, "-n", len(HOSTILE), "--no-replace")):
        command, *options = arguments
        done = run(command, folder / "names", folder / "rows.npy", *options)
        assert done.returncode == 0, done.stderr
        cells = [line.split("│") for line in done.stdout.splitlines() if "│" in line]
        assert len(cells) == len(HOSTILE) ** 2
        assert {line[2].strip() for line in cells} == set(SHOWN.values())
        assert all(line.isprintable() for line in done.stdout.splitlines())


def test_json_has_the_ids_themselves(folder):
    done = run("top-k", folder / "names", folder / "rows.npy", "-k", len(HOSTILE), "--json")
    assert set(json.loads(done.stdout.splitlines()[0])["ids"]) == set(HOSTILE)
    assert done.stdout.isascii()


def test_paths_cannot_write_to_the_terminal_either(folder):
    odd = folder / "\x1b[31mred\noops]"
    for arguments, code in (
        (("build", folder / "rows.npy", odd), 0),
        (("info", odd), 0),
        (("verify", odd), 0),
        (("info", f"{odd}x"), 4),
        (("build", f"{odd}.npy", folder / "x"), 3),
        (("top-k", folder / "names", folder / "rows.npy", "-k", 2, "--exclude", "\x1b[31m"), 3),
        (("\x1b[31m",), 2),
        (("info", odd, "--\x1b[31m\n"), 2),
    ):
        done = run(*arguments)
        assert done.returncode == code, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        # The title of a table is wrapped where the path is long.
        assert r"\x1b[31m" in (done.stdout + done.stderr).replace("\n", "")
        assert len(done.stderr.splitlines()) == (code > 0)


def test_only_one_module_of_the_command_line_prints():
    """Every cell goes through one function there, so there is no second way to the terminal."""
    sources = {path.stem: ast.parse(path.read_text()) for path in Path(softindex.__file__).parent.glob("cli/*.py")}
    for name, tree in sources.items():
        called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
        words = {getattr(function, "attr", getattr(function, "id", "")) for function in called}
        imported = {
            part.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for part in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
        }
        if name == "printing":
            assert {"echo", "Text"} <= words
        elif name == "options":  # the version
            assert not {"print", "secho", "Console"} & words
        else:
            assert not {"echo", "secho", "print", "Console", "write"} & words
            assert "rich" not in imported
    cells = [node for node in ast.walk(sources["printing"]) if isinstance(node, ast.Call)]
    assert [ast.unparse(call) for call in cells if getattr(call.func, "attr", "") == "add_row"] == [
        "table.add_row(*line)"
    ]
    assert "lines = (list(columns), [[_cell(value)" in ast.unparse(sources["printing"])


def test_what_errors_show_is_on_one_line_and_short():
    for value in (np.zeros((3, 3)), "a\nb\x1b[0m", "x" * 100, 10**400, 10**5000, "\u2028", b"\n"):
        assert show(value).isprintable()
        assert len(show(value)) <= 63
    assert printable("plain [text] é") == "plain [text] é"
    assert printable("\r\x9b\u202e") == r"\r\x9b\u202e"


def test_info_uses_the_same_words_for_every_kind(folder):
    rows = np.load(folder / "rows.npy")
    softindex.AdaptiveSoftmax(rows).save(folder / "classes")
    for name in ("classes", "names"):
        facts = json.loads(run("info", folder / name, "--json").stdout)
        assert (facts["items"], facts["dim"]) == rows.shape
        assert not {"n", "d"} & set(facts)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ("<&-", 3, "standard input is closed"),
        (">&-", 1, ""),
        ("2>&-", 3, ""),
        (">&- 2>&-", 1, ""),
        (">/dev/full", 1, ""),
        ("2>/dev/full", 3, ""),
        ("| true", 0, ""),
    ],
)
def test_closed_and_full_streams_have_their_exit_codes(folder, words, code, sentence):
    queries = "-" if code == 3 else str(folder / "rows.npy")
    stdin = "" if words == "<&-" else "</dev/null " if queries == "-" else ""
    quoted = " ".join(f"'{part}'" for part in (*COMMAND, "top-k", folder / "numbers", queries, "-k", 2))
    script = f"set -o pipefail; {quoted} {stdin}{words}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) <= 1


def test_output_that_is_closed_or_full_is_one_sentence(folder):
    for words, reason in ((">&-", "standard output is closed"), (">/dev/full", "No space left")):
        quoted = " ".join(f"'{part}'" for part in (*COMMAND, "info", folder / "numbers", "--json"))
        done = subprocess.run(["bash", "-c", f"{quoted} {words}"], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_terminal_without_unicode_shows_ids_escaped(folder):
    done = run("top-k", folder / "names", folder / "rows.npy", "-k", 9, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert r"[b]\xe9" in done.stdout


@pytest.mark.parametrize("digits", [400, 5000])
def test_numbers_of_many_digits_are_refused_in_one_sentence(folder, digits, monkeypatch, capsys):
    huge = "1" * digits
    at = (folder / "numbers", folder / "rows.npy")
    for arguments in (
        ("sample", *at, "-t", 1, "-n", huge),
        ("sample", *at, "-t", huge),
        ("sample", *at, "-t", 1, "--seed", huge),
        ("top-k", *at, "-k", 2, "--exclude", huge),
        ("build", folder / "rows.npy", folder / "x", "--clusters", huge),
        ("demo", "--items", huge),
        ("audit", folder / "numbers", "--method", f"sd-2ls:{huge}"),
    ):
        monkeypatch.setattr(sys, "argv", ["softindex", *map(str, arguments)])
        assert cli._run() in (2, 3)
        told = capsys.readouterr().err
        assert len(told.splitlines()) == 1
        assert len(told) < 400
    done = run("top-k", folder / "numbers", "-", "-k", 2, input=f"[{huge}, 1, 1, 1]\n")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1


def test_huge_numbers_in_python_are_refused_in_one_sentence(folder):
    index = softindex.load(folder / "numbers")
    layer = softindex.AdaptiveSoftmax(np.eye(4, dtype=np.float32))
    query = np.ones(4, np.float32)
    for huge in (10**400, -(10**400), 10**5000):
        for call in (
            lambda huge=huge: softindex.load(huge),
            lambda huge=huge: index.save(huge),
            lambda huge=huge: index.sample(query, temperature=1.0, exclude=[huge]),
            lambda huge=huge: index.log_prob(query, [huge], temperature=1.0),
            lambda huge=huge: layer.top_k(query, 1, temperature=1.0, exclude=[huge]),
            lambda huge=huge: layer.log_prob(query, [huge], temperature=1.0),
        ):
            with pytest.raises(softindex.InputError) as caught:
                call()
            assert len(str(caught.value)) < 250
        kept = index.sample(query, temperature=1.0, exclude=[1, huge], unknown="ignore", n=50, seed=0)
        assert 1 not in kept.ids


def test_a_gap_of_many_digits_is_refused():
    from softindex.mol.options import check_search

    snapshot = SimpleNamespace(n=10, spec=SimpleNamespace(pairs=4))
    with pytest.raises(softindex.InputError, match="gap"):
        check_search(snapshot, 1, "average", candidates=None, gap=10**400, threads=1)


def test_an_index_never_replaces_its_own_vectors(folder, tmp_path, monkeypatch):
    from softindex.cli import building

    vectors = tmp_path / "v.npy"
    vectors.write_bytes((folder / "rows.npy").read_bytes())
    done = run("build", vectors, vectors)
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert vectors.read_bytes() == (folder / "rows.npy").read_bytes()
    # Refused before the long work.
    monkeypatch.setattr(softindex, "build", lambda *_, **__: pytest.fail("built"))
    with pytest.raises(softindex.StorageError):
        building.build(str(vectors), vectors)


def test_a_refused_thread_is_one_sentence(folder):
    code = (
        "import threading; threading.Thread.start = lambda self: (_ for _ in ()).throw("
        'RuntimeError("can\'t start new thread")); from softindex.cli import main; main()'
    )
    command = [sys.executable, "-c", code, "audit", folder / "numbers", "--threads", "2"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("softindex: the system refuses to start a thread; end other processes")
    assert len(done.stderr.splitlines()) == 1


def test_a_full_disk_leaves_the_earlier_report(folder, tmp_path):
    report = tmp_path / "report.html"
    report.write_text("earlier")
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); from softindex.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "audit", folder / "numbers", "--method", "exact", "--html", report]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert report.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["report.html"]
    with pytest.raises(softindex.InputError, match="make room"):
        softindex.load(folder / "numbers").audit(count=2, methods=["exact"]).to_html("/dev/full")
