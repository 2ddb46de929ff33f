"""The demo, run as a user runs it, and the shop that it shows."""

import json
import subprocess
import sys

import numpy as np
import pytest

from softindex.evaluate.shop import shop


def run(*arguments):
    command = [sys.executable, "-c", "from softindex.cli import main; main()", "demo", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_demo_measures_every_method():
    done = run("--items", 3000, "--all", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    found = {(row["temperature"], row["method"]): row for row in rows}
    assert len(found) == len(rows)
    for temperature in {row["temperature"] for row in rows}:
        methods = {asked[1] for asked in found if asked[0] == temperature}
        assert methods == {"exact", "certified", "2ls:0", "s-2ls:0", "sd-2ls:0", "sd-2ls"}
    for row in rows:
        assert np.isfinite(row["kl"]["value"])
        assert 0 <= row["total_variation"]["value"] <= 1
        assert (row["stated_error"] is None) == row["method"].endswith(":0")
        assert row["stated_error"] is None or 0 <= row["stated_error"] <= 1
        if row["method"] in ("exact", "certified"):
            assert row["kl"]["value"] < 1e-9
            assert row["stated_error"] == 0
    assert found[0.05, "sd-2ls"]["kl"]["value"] <= found[0.05, "sd-2ls:0"]["kl"]["value"]


def test_the_demo_explains_its_tables():
    done = run("--items", 1000, "--all")
    assert done.returncode == 0, done.stderr
    for words in ("measured", "TV", "stated", "sd-2ls (default)", "sd-2ls, rank 8, no probes"):
        assert words in done.stdout


def test_the_demo_begins_with_its_conclusion_and_fits_80_columns():
    done = run("--items", 1000)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The default draws one of 1,000 items in ")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.count("│") == 3 * 6  # three rows of five columns


def test_the_demo_draws_items_of_the_shop():
    done = run("--items", 1000, "--json")
    found = json.loads(done.stdout)
    assert {row["method"] for row in found["rows"]} == {"exact", "certified", "sd-2ls"}
    names, _ = shop(1030)
    assert found["query"] == names[1000]
    assert {one["id"] for one in found["drawn"]} <= set(names[:1000])
    assert all(0 < one["probability"] <= 1 for one in found["drawn"])


@pytest.mark.parametrize("items", [100, 32_240, 100_000, 300_000])
def test_the_items_of_a_shop_have_different_names_and_length_one(items):
    names, vectors = shop(items)
    assert len(set(names)) == items == len(vectors)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_things_of_a_kind_are_nearer_than_others():
    names, vectors = shop(5000)
    kinds = np.array([name.split()[-1] for name in names])
    products = vectors[:200] @ vectors.T
    same = kinds[:200, None] == kinds
    assert products[same].mean() > products[~same].mean() + 0.3
