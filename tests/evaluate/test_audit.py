"""The audit's figures equal a brute-force computation, and its report is complete."""

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import softindex
from softindex.evaluate import audit as audit_module
from softindex.evaluate import truth as truth_module
from softindex.evaluate.charts import Axis
from softindex.evaluate.methods import AuditMethod, choose_methods
from softindex.evaluate.output import check_output
from softindex.evaluate.panels import files
from softindex.evaluate.truth import find_truth

TEMPERATURES = [0.05, 0.3, 2.0]


def make(*, biased=False, n=400, **options):
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((n, 6)).astype(np.float32)
    vectors[: n // 4] *= 0.1
    bias = rng.standard_normal(n).astype(np.float32) if biased else None
    return softindex.build(vectors, log_bias=bias, clusters=14, **options)


def logits_without(index, queries, own, temperature):
    """The logits in float64 from the definition: (b, n), in the order of index.ids; -inf for the query's own item."""
    items = index.items
    logits = queries.astype(np.float64) @ items.vectors.astype(np.float64).T / temperature
    logits += 0.0 if items.log_bias is None else items.log_bias
    logits[np.arange(len(own)), own] = -np.inf
    return logits


@pytest.fixture(scope="module")
def audited():
    index = make(biased=True, tree=True, codes=True)
    return index, index.audit(count=12, temperatures=TEMPERATURES)


def test_every_distance_is_that_of_brute_force(audited):
    index, found = audited
    queries, _, own = audit_module._choose_queries(index, None, 12, 0)
    left = index.ids[own][:, None]
    others = ~np.eye(len(index), dtype=bool)[own]
    for row in found.rows:
        law = AuditMethod(*_split(row.method))
        logits = logits_without(index, queries, own, row.temperature)
        log_s = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        log_p = index.log_prob(queries, index.ids, temperature=row.temperature, exclude=left, **law.options)
        assert (log_p[~others] == -np.inf).all()
        log_s, log_p = (values[others].reshape(len(own), -1) for values in (log_s, log_p))
        p, s = np.exp(log_p), np.exp(log_s)
        drawn = p > 0
        kl = np.where(drawn, p * (np.where(drawn, log_p, 0) - log_s), 0).sum(axis=1)
        assert row.kl.value == pytest.approx(kl.mean(), abs=1e-6), row.label
        assert row.total_variation.value == pytest.approx(np.abs(p - s).sum(axis=1).mean() / 2, abs=1e-6), row.label
        spread = np.sqrt((s * (p / s - 1) ** 2).sum(axis=1)).mean()
        assert row.ratio_spread.value == pytest.approx(spread, rel=1e-3, abs=1e-4), row.label
        if drawn.all():
            reverse = (s * (log_s - log_p)).sum(axis=1).mean()
            assert row.reverse_kl.value == pytest.approx(reverse, abs=1e-6), row.label


def _split(spec):
    method, _, probes = spec.partition(":")
    return method, int(probes) if probes else None


def test_all_methods_are_there_and_ordered_by_temperature(audited):
    _, found = audited
    assert found.temperatures == tuple(TEMPERATURES)
    methods = [row.method for row in found.at(0.3)]
    assert set(methods) >= {"exact", "certified", "top-k", "2ls:0", "s-2ls:0", "sd-2ls:0", "sd-2ls", "sd-hierarchical"}
    assert len(methods) == len(set(methods))


def test_log_partition_errors_are_those_of_log_partition(audited):
    index, found = audited
    queries, _, own = audit_module._choose_queries(index, None, 12, 0)
    left = index.ids[own][:, None]
    for row in found.at(0.3):
        method, probes = _split(row.method)
        if "hierarchical" in method or method == "top-k":
            assert row.log_partition_error is None
            continue
        value = index.log_partition(queries, temperature=0.3, method=method, probes=probes, exclude=left).value
        logits = logits_without(index, queries, own, 0.3)
        error = np.abs(value - np.logaddexp.reduce(logits, axis=1)).mean()
        assert row.log_partition_error.value == pytest.approx(error, abs=1e-6)


def test_intervals_hold_their_value_and_latencies_are_positive(audited):
    for row in audited[1].rows:
        for measured in (row.kl, row.total_variation, row.ratio_spread, row.microseconds):
            assert measured.low <= measured.value <= measured.high
        assert row.microseconds.value > 0
        assert row.memory > 0


def test_certified_and_exact_are_the_softmax(audited):
    for row in audited[1].rows:
        if row.method in ("exact", "certified"):
            assert row.kl.value < 1e-9
            assert row.proven == (row.method == "certified")


@pytest.mark.parametrize("block", [1, 7, 97, 10_000])
@pytest.mark.parametrize("biased", [False, True])
def test_the_truth_does_not_depend_on_blocks_or_threads(block, biased, monkeypatch):
    # Clusters that span many blocks, and empty ones.
    index = softindex.build(np.repeat(np.eye(3, dtype=np.float32), 40, axis=0), clusters=9)
    if biased:
        index = make(biased=True, n=90)
    rng = np.random.default_rng(1)
    queries = rng.standard_normal((3, index.dim)).astype(np.float32)
    monkeypatch.setattr(truth_module, "BLOCK_SCORES", 3 * block)
    items = index.items
    found = find_truth(items, queries, TEMPERATURES, threads=3)
    scores = queries.astype(float) @ items.vectors.astype(float).T
    for place, temperature in enumerate(TEMPERATURES):
        logits = scores / temperature + (0 if items.log_bias is None else items.log_bias)
        for cluster, (begin, end) in enumerate(zip(items.offsets[:-1], items.offsets[1:], strict=True)):
            masses = found.log_masses[place, :, cluster]
            if begin == end:
                assert np.isneginf(masses).all()
            else:
                np.testing.assert_allclose(masses, np.logaddexp.reduce(logits[:, begin:end], axis=1), rtol=1e-12)
                np.testing.assert_allclose(found.variances[:, cluster], scores[:, begin:end].var(axis=1), atol=1e-12)
        np.testing.assert_allclose(found.log_partition[place], np.logaddexp.reduce(logits, axis=1), rtol=1e-12)


class Tags(HTMLParser):
    """Every tag must be closed, and nothing may be fetched."""

    void = ("meta", "br")

    def __init__(self):
        super().__init__()
        self.open, self.pictures, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        facts = dict(attrs)
        assert not {"src", "href"} & facts.keys()
        if tag == "svg":
            self.pictures.append(facts)
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_report_is_one_complete_file_with_texts_for_its_plots(audited, tmp_path):
    _, found = audited
    found.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "http" not in page
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL).lower()
    for picture in tags.pictures:
        assert picture.get("aria-hidden") == "true" or (picture["role"] == "img" and len(picture["aria-label"]) > 20)
    text = " ".join(tags.text)
    assert found.recommendation in text
    for label in {row.label for row in found.rows}:
        assert label in text


def test_each_figure_stands_alone_and_says_in_words_what_it_shows(audited):
    found = {name: ElementTree.fromstring(text) for name, text in files(audited[1]).items()}
    said = {
        "pareto": "microseconds",
        "ratios-by-size": "90 % of the clusters between",
        "ratios-by-variance": "90 % of the clusters between",
        "ratios-of-items": "90 % of the items between",
        "cluster-sizes": "14 clusters of",
    }
    assert set(found) == set(said)
    for name, root in found.items():
        assert root.tag.endswith("svg")
        assert said[name] in root.attrib["aria-label"]


def test_json_carries_all_rows_and_no_nan(audited, tmp_path):
    audited[1].to_json(tmp_path / "audit.json")
    read = json.loads((tmp_path / "audit.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert len(read["rows"]) == len(audited[1].rows)
    assert {entry["method"] for entry in read["rows"] if entry["reverse_kl"]["value"] is None} <= {"top-k"}


def test_the_table_is_readable_text(audited):
    text = str(audited[1])
    assert text.endswith(audited[1].recommendation)
    assert len(text.splitlines()) == len(audited[1].rows) + 3


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"methods": ["sd-3ls"]}, "no method 'sd-3ls'"),
        ({"methods": ["sd-2ls:"]}, "no method 'sd-2ls:'"),
        ({"methods": ["sd-2ls:-1"]}, "no method"),
        ({"methods": ["sd-2ls:9999"]}, "probes is 9999"),
        ({"methods": ["exact:3"]}, "exact takes no probes"),
        ({"methods": ["hierarchical"]}, "hierarchical needs a tree"),
        ({"methods": []}, "no methods to audit"),
        ({"methods": 5}, "no method"),
        ({"temperatures": []}, "no temperatures"),
        ({"temperatures": [0.1, 0]}, "temperature is 0"),
        ({"queries": np.zeros((3, 5), np.float32)}, "5 dimensions but this index has 6"),
        ({"queries": np.zeros((0, 6), np.float32)}, "queries have no rows"),
        ({"count": 0}, "count is 0"),
        ({"tolerance": 0}, "tolerance is 0"),
        ({"tolerance": 5}, "no total variation is above 1"),
        ({"methods": ["top-k:5"]}, "top-k takes no probes"),
        ({"methods": ["sd-2ls:" + "9" * 5000]}, "no method"),
        ({"temperatures": [[0.1], [0.2, 0.3]]}, "temperature is"),
        ({"temperatures": "hot"}, "temperature is 'hot'"),
    ],
)
def test_bad_input_is_refused_before_the_long_work(asked, sentence, monkeypatch):
    index = make()
    monkeypatch.setattr(audit_module, "find_truth", lambda *_, **__: pytest.fail("the work has begun"))
    with pytest.raises(softindex.InputError, match=sentence):
        index.audit(**asked)


def test_an_output_that_cannot_be_written_is_refused_first(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from softindex.cli import app

    make().save(tmp_path / "index")
    monkeypatch.setattr(softindex.Index, "audit", lambda *_, **__: pytest.fail("the work has begun"))
    asked = ["audit", str(tmp_path / "index"), "--html", str(tmp_path / "nowhere" / "report.html")]
    failed = CliRunner().invoke(app, asked)
    assert isinstance(failed.exception, softindex.InputError)
    assert "cannot be written" in str(failed.exception)
    assert not list(tmp_path.glob("**/*.html"))


def test_the_command_line_prints_tables_json_and_a_report(tmp_path):
    from typer.testing import CliRunner

    from softindex.cli import app

    make(codes=True).save(tmp_path / "index")
    np.save(tmp_path / "queries.npy", np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32))
    asked = ["audit", str(tmp_path / "index"), "-t", "0.5", "--method", "sd-2ls", "--method", "exact"]
    shown = CliRunner().invoke(app, [*asked, "--html", str(tmp_path / "report.html"), "--count", "5"])
    assert shown.exit_code == 0, shown.output
    assert "Recommended: " in shown.output
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")
    told = CliRunner().invoke(app, [*asked, "--json", "--queries", str(tmp_path / "queries.npy")])
    assert json.loads(told.output)["parameters"]["queries"] == 4


@pytest.mark.parametrize("options", [{}, {"dispersion": "none"}, {"tree": True}, {"dispersion": "full"}])
def test_all_that_an_index_serves_is_audited(options):
    index = make(**options)
    chosen = choose_methods(index, None)
    for method in chosen:
        index.sample(index.items.vectors[0], temperature=0.3, **method.options)
    assert (AuditMethod("sd-2ls") in chosen) == (options.get("dispersion") != "none")
    assert len(index.audit(count=3, temperatures=0.5).rows) == len(chosen)


def test_one_item_one_query_and_equal_items():
    single = softindex.build(np.ones((1, 3), np.float32)).audit(temperatures=[0.1])
    assert all(row.kl.value < 1e-9 for row in single.rows)
    equal = softindex.build(np.ones((50, 3), np.float32)).audit(np.ones(3), temperatures=[1e-4, 1e4])
    assert all(row.total_variation.value < 1e-6 for row in equal.rows)
    equal.to_html(Path("/dev/null"))


@pytest.mark.parametrize(("dispersion", "label"), [("full", "sd-2ls, published"), (3, "sd-2ls, rank 3, no probes")])
def test_sd_2ls_is_called_published_only_with_full_covariances(dispersion, label):
    found = make(dispersion=dispersion).audit(count=3, temperatures=0.5)
    assert {row.method: row.label for row in found.rows}["sd-2ls:0"] == label
    assert label in found.figures.ratios
    assert {row.label for row in found.rows} >= {"2ls, published", "s-2ls, published"}


def test_an_index_with_string_ids_has_the_same_distances():
    rng = np.random.default_rng(5)
    vectors = rng.standard_normal((1500, 4)).astype(np.float32)
    names = [f"item {row}" for row in rng.permutation(1500)]
    plain, named = (
        softindex.build(vectors, ids=ids, clusters=20).audit(count=4, temperatures=0.5, methods=["top-k"]).rows[0]
        for ids in (None, names)
    )
    assert plain.kl == named.kl
    assert 0 < plain.kl.value < 1


def test_axes_have_round_ticks_inside():
    for low, high in ((0.0, 1.0), (-13.2, -2.1), (177, 1903), (1e-9, 3e-9)):
        ticks = Axis("x", low, high).ticks()
        assert 3 <= len(ticks) <= 8
        assert all(low <= value <= high for value, _ in ticks)
    for low, high in ((1e-7, 2.0), (3.0, 9.0), (40.0, 2e4)):
        ticks = Axis("x", low, high, log=True).ticks()
        assert 2 <= len(ticks) <= 8
        assert all(low * 0.99 <= value <= high * 1.01 for value, _ in ticks)


def test_the_queries_that_are_timed_are_like_all_of_them():
    # Two kinds of items; the vectors stand cluster by cluster.
    rng = np.random.default_rng(0)
    vectors = np.concatenate([rng.standard_normal((500, 4)), 10 + rng.standard_normal((500, 4))]).astype(np.float32)
    index = softindex.build(vectors)
    chosen = audit_module._choose_queries(index, None, 200, 0)[0]
    assert 0.3 < (chosen[:100, 0] > 5).mean() < 0.7


@pytest.mark.parametrize("extreme", ["biased", "long", "equal"])
def test_reports_of_extremes_hold_numbers_only(extreme, tmp_path):
    rng = np.random.default_rng(0)
    vectors, bias = rng.standard_normal((300, 8)).astype(np.float32), None
    if extreme == "biased":
        bias = rng.choice([-1e6, 0, 1e6], 300).astype(np.float32)
    elif extreme == "long":
        vectors *= 1e6
    else:
        vectors = np.full((50, 4), 1e8, np.float32)
    found = softindex.build(vectors, log_bias=bias).audit(count=5, temperatures=[5e-4, 0.1])
    found.to_html(tmp_path / "report.html")
    page = re.sub(r"<style>.*?</style>", "", (tmp_path / "report.html").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not re.search(r"\bnan\b|\binf\b", page)
    json.dumps(found.to_dict(), allow_nan=False)


def test_an_output_is_checked_without_a_trace(tmp_path):
    (tmp_path / "link.html").symlink_to(tmp_path / "target.html")
    check_output(tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert not (tmp_path / "target.html").exists()
    for bad in (tmp_path, tmp_path / "no" / "page.html", tmp_path / ("x" * 400), "a\0b", 5):
        with pytest.raises(softindex.InputError):
            check_output(bad)
