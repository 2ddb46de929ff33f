"""The command line, run as a user runs it: a process, its output, its exit code."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import softindex
from softindex.laws import METHODS


def run(*arguments, stdin=None):
    command = [sys.executable, "-c", "from softindex.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    np.save(folder / "vectors.npy", rng.standard_normal((500, 4)).astype(np.float32))
    np.save(folder / "queries.npy", rng.standard_normal((3, 4)).astype(np.float32))
    done = run("build", folder / "vectors.npy", folder / "index", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["items"] == 500
    return folder


def test_build_with_ids_and_biases(saved, tmp_path):
    (tmp_path / "ids.txt").write_text("\n".join(f"item-{row}" for row in range(500)))
    np.save(tmp_path / "bias.npy", np.zeros(500, np.float32))
    done = run(
        "build", saved / "vectors.npy", tmp_path / "index", "--ids", tmp_path / "ids.txt",
        "--log-bias", tmp_path / "bias.npy", "--dispersion", 2, "--clusters", 9,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    drawn = run("sample", tmp_path / "index", saved / "queries.npy", "-t", 0.5, "--json")
    assert json.loads(drawn.stdout.splitlines()[0])["ids"][0].startswith("item-")


def test_build_with_codes(saved, tmp_path):
    done = run("build", saved / "vectors.npy", tmp_path / "index", "--codes")
    assert done.returncode == 0, done.stderr
    for folder, kept in ((tmp_path, True), (saved, False)):
        assert json.loads(run("info", folder / "index", "--json").stdout)["codes"] is kept


def test_build_with_a_tree(saved, tmp_path):
    done = run("build", saved / "vectors.npy", tmp_path / "index", "--tree", "--clusters", 9)
    assert done.returncode == 0, done.stderr
    assert json.loads(run("info", tmp_path / "index", "--json").stdout)["tree"] is True
    assert json.loads(run("info", saved / "index", "--json").stdout)["tree"] is False
    asked = ("-t", 0.5, "--method", "s-hierarchical", "--json")
    assert json.loads(run("sample", tmp_path / "index", saved / "queries.npy", *asked).stdout.splitlines()[0])["ids"]
    refused = run("sample", saved / "index", saved / "queries.npy", *asked)
    assert refused.returncode == 3
    assert "tree=True" in refused.stderr


def test_sample_prints_one_json_object_per_query_and_repeats_for_a_seed(saved):
    first = run("sample", saved / "index", saved / "queries.npy", "-t", 0.5, "-n", 4, "--seed", 3, "--json")
    again = run("sample", saved / "index", saved / "queries.npy", "-t", 0.5, "-n", 4, "--seed", 3, "--json")
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    lines = [json.loads(line) for line in first.stdout.splitlines()]
    assert [line["query"] for line in lines] == [0, 1, 2]
    assert all(len(line["ids"]) == len(line["log_prob"]) == 4 for line in lines)


def drawn(saved, *arguments):
    done = run("sample", saved / "index", saved / "queries.npy", "-t", 0.3, "-n", 2, "--seed", 1, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_sample_takes_probes_and_a_tolerance_and_states_the_error(saved):
    clusters = json.loads(run("info", saved / "index", "--json").stdout)["clusters"]
    assert all(line["error"] is None for line in drawn(saved, "--probes", 0))
    assert all(line["error"] <= 1e-9 for line in drawn(saved, "--probes", clusters))
    loose, tight = drawn(saved, "--tolerance", 0.9), drawn(saved, "--tolerance", 1e-6)
    assert all(line["error"] <= 0.9 for line in loose)
    assert all(line["error"] <= 1e-6 for line in tight)
    assert sum(line["items_scored"] for line in loose) < sum(line["items_scored"] for line in tight)


def test_certified_draws_come_with_their_bounds_and_no_others_do(saved):
    for line in drawn(saved, "--method", "certified"):
        assert line["error"] == 0
        assert all(
            low <= value <= high for low, value, high in zip(line["low"], line["log_prob"], line["high"], strict=True)
        )
    assert all(not {"low", "high"} & set(line) for line in drawn(saved))


def test_the_table_of_draws_shows_the_error_and_the_items_scored_once_per_query(saved):
    asked = ("sample", saved / "index", saved / "queries.npy", "-t", 0.3, "-n", 2, "--seed", 1)
    for arguments, shown in (((), None), (("--probes", 0), "-"), (("--method", "certified"), "0")):
        done = run(*asked, *arguments)
        assert done.returncode == 0, done.stderr
        cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
        first, later = cells[::2], cells[1::2]
        expected = drawn(saved, *arguments)
        assert [int(row[-1].replace(",", "")) for row in first] == [line["items_scored"] for line in expected]
        assert [row[-2] for row in first] == [shown or f"{line['error']:.2g}" for line in expected]
        assert all(row[-2:] == ["", ""] for row in later)
        assert ("low" in done.stdout) == ("certified" in arguments)


def test_the_help_of_sample_explains_every_method(monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    told = run("sample", "--help").stdout
    start = "The distribution to draw from"
    explained = next(line for line in told.splitlines() if start in line).split(start)[1]
    assert all(method in explained for method in METHODS)
    assert "--probes" in told
    assert "--tolerance" in told


def test_top_k_takes_probes(saved):
    asked = ("top-k", saved / "index", saved / "queries.npy", "-k", 3, "--json")
    proven, quick = (
        [json.loads(line) for line in run(*asked, *more).stdout.splitlines()] for more in ((), ("--probes", 1))
    )
    assert all(one["items_scored"] < all_["items_scored"] for one, all_ in zip(quick, proven, strict=True))
    assert all(line["proven"] == [True] * 3 and line["gap"] == 0 for line in proven)
    assert all(line["gap"] >= 0 and (line["gap"] == 0) == all(line["proven"]) for line in quick)
    assert any(line["gap"] > 0 for line in quick)


def test_the_table_of_the_best_shows_what_is_proven_and_the_gap(saved):
    for more in ((), ("--probes", 1)):
        command = ("top-k", saved / "index", saved / "queries.npy", "-k", 2, *more)
        done, lines = run(*command), [json.loads(line) for line in run(*command, "--json").stdout.splitlines()]
        assert done.returncode == 0, done.stderr
        cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
        proven = ["yes" if one else "no" for line in lines for one in line["proven"]]
        assert [row[3] for row in cells] == proven
        assert [float(row[4]) for row in cells[::2]] == pytest.approx([line["gap"] for line in lines], rel=0.1)
        assert [row[4] for row in cells[1::2]] == [""] * 3


def test_log_partition_prints_the_value_and_its_bounds(saved):
    asked = ("log-partition", saved / "index", saved / "queries.npy", "-t", 0.5)
    for more, bounded in (((), False), (("--method", "exact"), True), (("--confidence", 0.95), True)):
        done = run(*asked, *more, "--json")
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(lines) == 3
        assert all(("low" in line) == bounded for line in lines)
        assert all(not bounded or line["low"] <= line["value"] <= line["high"] for line in lines)
        assert run(*asked, *more).returncode == 0


def test_options_reach_the_library_under_its_own_names(saved, monkeypatch):
    from typer.testing import CliRunner

    from softindex.cli import app

    calls = {}

    def record(name):
        def called(*_, **options):
            calls[name] = options
            raise softindex.InputError("seen")

        return called

    for name in ("sample", "top_k", "log_partition"):
        monkeypatch.setattr(softindex.Index, name, record(name))
    places = [str(saved / "index"), str(saved / "queries.npy")]
    excluded = ["--exclude", "1,2", "--unknown", "ignore"]
    CliRunner().invoke(app, ["sample", *places, "-t", "0.5", *excluded])
    CliRunner().invoke(app, ["top-k", *places, *excluded])
    CliRunner().invoke(app, ["log-partition", *places, "-t", "1", "--method", "certified", "--width", "0.1"])
    assert calls["sample"] == {
        "temperature": 0.5, "method": "sd-2ls", "replace": True, "exclude": [1, 2], "unknown": "ignore",
    }  # fmt: skip
    assert calls["top_k"] == {"temperature": 1.0, "exclude": [1, 2], "unknown": "ignore"}
    assert calls["log_partition"] == {"temperature": 1.0, "method": "certified", "width": 0.1}


def test_ids_are_printed_as_they_are(saved, tmp_path):
    names = [f"[red]{row}[/red] :smile:" for row in range(500)]
    (tmp_path / "ids.txt").write_text("\n".join(names))
    assert run("build", saved / "vectors.npy", tmp_path / "[b]index", "--ids", tmp_path / "ids.txt").returncode == 0
    done = run("top-k", tmp_path / "[b]index", saved / "queries.npy", "-k", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[red]") == done.stdout.count("[/red] :smile:") == 6
    assert "[b]index" in run("info", tmp_path / "[b]index").stdout


def test_sample_from_a_part_of_the_law(saved, tmp_path):
    (tmp_path / "seen.txt").write_text("".join(f"{row}\n" for row in range(490)))
    asked = ("sample", saved / "index", saved / "queries.npy", "-t", 0.5, "--json")
    for arguments, allowed in (
        (("-n", 10, "--no-replace", "--exclude", tmp_path / "seen.txt"), set(range(490, 500))),
        (("-n", 490, "--no-replace", "--exclude", "0,1,2,3,4,5,6,7,8,9"), set(range(10, 500))),
        (("-n", 3, "--no-replace", "--allow", "0,1,2,3", "--exclude", "2"), {0, 1, 3}),
        (("-n", 490, "--no-replace", "--allow", tmp_path / "seen.txt"), set(range(490))),
    ):
        done = run(*asked, *arguments)
        assert done.returncode == 0, done.stderr
        assert all(set(json.loads(line)["ids"]) == allowed for line in done.stdout.splitlines())
    for arguments in (("--top-p", 1e-9), ("--method", "top-k", "-k", 1)):
        done = run(*asked, "-n", 5, *arguments)
        assert done.returncode == 0, done.stderr
        assert all(len(set(json.loads(line)["ids"])) == 1 for line in done.stdout.splitlines())


def test_sample_and_top_k_from_a_subset_that_was_saved_by_name(saved, tmp_path):
    softindex.load(saved / "index").save(tmp_path / "index", subsets={"first": range(20), "odd": range(1, 500, 2)})
    for name, allowed in (("first", set(range(20))), ("odd", set(range(1, 500, 2)))):
        for command in (("sample", "-t", 0.5, "-n", 15), ("top-k", "-k", 15)):
            done = run(command[0], tmp_path / "index", "--item", 30, *command[1:], "--subset", name, "--json")
            assert done.returncode == 0, done.stderr
            assert set(json.loads(done.stdout)["ids"]) <= allowed
    done = run("top-k", tmp_path / "index", "--item", 3, "--subset", "last")
    assert done.returncode == 3
    assert "it has 'first', 'odd'" in done.stderr


def test_excluded_ids_are_text_where_the_index_has_text(saved, tmp_path):
    (tmp_path / "ids.txt").write_text("\n".join(f"{row:03d}" for row in range(500)))
    assert run("build", saved / "vectors.npy", tmp_path / "index", "--ids", tmp_path / "ids.txt").returncode == 0
    asked = ("sample", tmp_path / "index", saved / "queries.npy", "-t", 0.5, "-n", 498, "--no-replace", "--json")
    done = run(*asked, "--exclude", "007,123")
    assert done.returncode == 0, done.stderr
    assert not {"007", "123"} & set(json.loads(done.stdout.splitlines()[0])["ids"])


@pytest.mark.parametrize("line", ["1 2 3 4", "1, 2, 3, 4", "[1, 2, 3, 4]"])
def test_queries_come_from_standard_input(saved, line):
    done = run("top-k", saved / "index", "-", "-k", 2, "--json", stdin=line + "\n")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["ids"]) == 2


def test_tables_for_people(saved):
    for arguments in (
        ("sample", saved / "index", saved / "queries.npy", "-t", 0.5),
        ("top-k", saved / "index", saved / "queries.npy"),
        ("info", saved / "index"),
        ("verify", saved / "index"),
    ):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
    assert re.search(r"is intact: \d+ arrays checked$", done.stdout.strip())


def test_calibrate_covers_what_it_says_and_the_index_keeps_it(saved, tmp_path):
    np.save(tmp_path / "traffic.npy", np.random.default_rng(1).standard_normal((60, 4)).astype(np.float32))
    place = tmp_path / "calibrated"
    done = run(
        "calibrate", saved / "index", tmp_path / "traffic.npy", "-t", 0.2, "-t", 0.5, "--confidence", 0.8,
        "--output", place,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "covers 80% of queries like these 60, at temperatures from 0.2 to 0.5" in done.stdout
    inside, outside = (
        json.loads(run("sample", place, saved / "queries.npy", "-t", t, "--json").stdout.splitlines()[0])
        for t in (0.3, 0.7)
    )
    assert (inside["confidence"], outside["confidence"]) == (0.8, None)
    shown = run("sample", place, saved / "queries.npy", "-t", 0.3, "--seed", 1).stdout
    assert "error calibrated at 0.8" in " ".join(shown.split())
    found = run("log-partition", place, saved / "queries.npy", "-t", 0.3, "--confidence", 0.8, "--json").stdout
    assert json.loads(found.splitlines()[0])["guarantee"] == "calibrated"
    again = run("calibrate", place, tmp_path / "traffic.npy", "--json")
    assert json.loads(again.stdout)["confidence"] == 0.9
    assert "of 90%" in run("audit", place, "--queries", tmp_path / "traffic.npy", "-t", 0.1).stdout


def test_info_and_verify_for_programs(saved):
    facts = json.loads(run("info", saved / "index", "--json").stdout)
    assert (facts["kind"], facts["items"], facts["dim"], facts["version"]) == ("index", 500, 4, 3)
    blobs = json.loads(run("verify", saved / "index", "--json").stdout)["blobs"]
    assert {"name": "vectors", "bytes": 8064} in blobs
    assert run("--version").stdout.startswith("softindex ")


def test_everything_that_can_be_saved_can_be_verified(tmp_path):
    rows = np.random.default_rng(0).standard_normal((60, 5), dtype=np.float32)
    softindex.AdaptiveSoftmax(rows).save(tmp_path / "classes")
    spec = softindex.mol.SimilaritySpec(1, 1, 5, 1.0, False, None, None, False)

    class Given:
        def spec(self):
            return spec

        def item_side(self, items):
            return softindex.mol.ItemSide(items[:, None], None)

    softindex.mol.build(Given(), rows).save(tmp_path / "items")
    for name in ("classes", "items"):
        for command in ("info", "verify"):
            done = run(command, tmp_path / name)
            assert done.returncode == 0, done.stderr
        blob = max((tmp_path / name).rglob("*.bin"), key=lambda path: path.stat().st_size)
        blob.write_bytes(blob.read_bytes()[:-1] + b"\xff")
        assert run("verify", tmp_path / name).returncode == 4


def test_ids_that_only_look_like_numbers_stay_text(saved, tmp_path):
    (tmp_path / "ids.txt").write_text("\n".join(f"{row:05d}" for row in range(500)) + "\n")
    assert run("build", saved / "vectors.npy", tmp_path / "index", "--ids", tmp_path / "ids.txt").returncode == 0
    drawn = run("sample", tmp_path / "index", saved / "queries.npy", "-t", 0.5, "--json")
    assert len(json.loads(drawn.stdout.splitlines()[0])["ids"][0]) == 5


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("sample", "{index}", "{queries}", "-t", "-1"), 3, "temperature"),
        (("sample", "{index}", "{queries}", "-t", "1", "-n", "0"), 3, "n "),
        (("sample", "{index}", "{queries}", "-t", "1", "--method", "none"), 2, "method"),
        (("sample", "{index}", "{queries}"), 2, "temperature"),
        (("sample", "{folder}/nothing", "{queries}", "-t", "1"), 4, "nothing"),
        (("info", "{folder}"), 4, "index"),
        (("verify", "{folder}/vectors.npy"), 4, "index"),
        (("build", "{folder}/missing.npy", "{folder}/x"), 3, "missing.npy"),
        (("build", "{folder}/vectors.npy", "{folder}/x", "--clusters", "501"), 3, "clusters"),
        (("build", "{folder}/vectors.npy", "{folder}/queries.npy"), 4, "queries.npy"),
        (("build", "{folder}/vectors.npy", "{folder}/x", "--dispersion", "lots"), 3, "dispersion"),
        (("build", "{folder}/vectors.npy", "{folder}/x", "--dispersion=--3"), 3, "dispersion"),
        (("sample", "{index}", "{queries}", "-t", "1", "-n", "2305843009213693952"), 3, "memory"),
        (("demo", "--items", "0"), 3, "items"),
        (("sample", "{index}", "{queries}", "-t", "1", "--exclude", "1,x"), 3, "exclude"),
        (("sample", "{index}", "{queries}", "-t", "1", "--exclude", "500"), 3, "500"),
        (("sample", "{index}", "{queries}", "-t", "1", "--top-p", "2"), 3, "top_p"),
        (("sample", "{index}", "{queries}", "-t", "1", "-k", "5"), 3, "top-k"),
        (("sample", "{index}", "{queries}", "-t", "1", "-n", "501", "--no-replace"), 3, "replacement"),
        (("sample", "{index}", "{queries}", "-t", "1", "--probes", "-1"), 3, "probes is -1; expected"),
        (("sample", "{index}", "{queries}", "-t", "1", "--probes", "501"), 3, "probes is 501; expected"),
        (("sample", "{index}", "{queries}", "-t", "1", "--probes", "x"), 2, "probes"),
        (("sample", "{index}", "{queries}", "-t", "1", "--probes", "3", "--method", "exact"), 3, "leave probes out"),
        (("sample", "{index}", "{queries}", "-t", "1", "--probes", "0", "--method", "top-k"), 3, "probes is 0"),
        (("sample", "{index}", "{queries}", "-t", "1", "--tolerance", "0"), 3, "tolerance is 0.0; expected"),
        (("sample", "{index}", "{queries}", "-t", "1", "--tolerance", "nan"), 3, "tolerance is nan; expected"),
        (("top-k", "{index}", "{queries}", "--probes", "0"), 3, "probes"),
        (("top-k", "{index}", "{queries}", "--probes", "99999999999999999999"), 3, "probes"),
    ],
)
def test_an_error_is_one_sentence_on_stderr_and_a_stable_exit_code(saved, arguments, code, sentence):
    places = {"index": saved / "index", "queries": saved / "queries.npy", "folder": saved}
    done = run(*[part.format(**places) for part in arguments])
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr
    assert not done.stdout
    if code > 2:
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("text", ["", "1 2\n1 2 3\n", "a b c d\n", '{"a": 1}\n', "[1, [2]]\n"])
def test_bad_standard_input_is_refused(saved, text):
    done = run("sample", saved / "index", "-", "-t", 1, stdin=text)
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_reader_that_leaves_is_no_failure(saved):
    script = (
        f"{sys.executable} -c 'from softindex.cli import main; main()' "
        f"sample {saved / 'index'} {saved / 'queries.npy'} -t 1 -n 3000 --json | head -c 10"
    )
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
