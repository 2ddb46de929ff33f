"""A calibrated error covers the total variation as often as it says, for queries like those it was calibrated with."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import betabinom

import softindex
from benchmarks.families import STANDARD, open_family
from softindex.calibration import SCALE, STEP, refine
from softindex.errors import CorruptIndexError, InputError, MethodError
from softindex.evaluate.distances import between
from softindex.quantiles import conformal_rank, fewest_queries
from softindex.records import Stored
from softindex.store import load as load_stored
from softindex.store import save as save_stored

CALIBRATED, FRESH = 200, 400
FALSE_ALARM = 1e-5
"""Of one assertion about coverage; there are some forty."""
T = 0.05


def made(name="sparse", kind=STANDARD, n=3000, **options):
    """An index, queries to calibrate with, and fresh ones of the same kind."""
    family = open_family(name, n=n, d=24, queries=CALIBRATED + FRESH)
    queries = family.queries[kind]
    return softindex.build(family.items, clusters=55, **options), queries[:CALIBRATED], queries[CALIBRATED:]


@pytest.fixture(scope="module")
def sparse():
    index, calibrating, fresh = made()
    return index, index.calibrate(calibrating, temperatures=[T, 0.1], confidence=0.9), calibrating, fresh


def distances(index, queries, temperature, **options):
    """Total variation and log Z from a scan of every item."""
    law = index.cluster_log_masses(queries, temperature=temperature, **{"method": "sd-2ls", **options})[0]
    truth = index.cluster_log_masses(queries, temperature=temperature, method="exact")[0]
    return between(law, truth).total_variation, np.logaddexp.reduce(truth, axis=1)


def fewest_covered(confidence, beyond=FALSE_ALARM):
    """So many of the fresh queries are covered at least, but with probability `beyond`, if scores have no ties."""
    rank = conformal_rank(CALIBRATED, confidence)
    return betabinom.ppf(beyond, FRESH, rank, CALIBRATED + 1 - rank)


class TestCoverage:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("isotropic", "means of two"),
            ("lognormal lengths", STANDARD),
            ("sparse", STANDARD),
            ("two tower", STANDARD),
            ("near copies", "analogies"),
            ("binary", "other"),
            ("heavy tails", "scaled"),
        ],
    )
    def test_the_error_and_the_interval_of_log_z_cover_fresh_queries(self, name, kind):
        index, calibrating, fresh = made(name, kind)
        for confidence in (0.5, 0.9):
            calibrated = index.calibrate(calibrating, confidence=confidence, temperatures=T)
            draws = calibrated.sample(fresh, temperature=T, seed=1)
            measured, log_z = distances(calibrated, fresh, T)
            assert draws.confidence == confidence
            assert (measured <= draws.error).sum() >= fewest_covered(confidence)
            found = calibrated.log_partition(fresh, temperature=T, confidence=confidence)
            assert found.guarantee == "calibrated"
            inside = ((found.low <= log_z) & (log_z <= found.high)).sum()
            # Many queries have an error of exactly 0 where all is scanned, and those are covered beyond the confidence.
            assert inside >= fewest_covered(confidence)

    def test_the_interval_of_log_z_is_about_as_wide_as_its_error(self, sparse):
        _, calibrated, _, fresh = sparse
        log_z = distances(calibrated, fresh, T)[1]
        for confidence in (0.5, 0.8, 0.95):
            found = calibrated.log_partition(fresh, temperature=T, confidence=confidence)
            inside = ((found.low <= log_z) & (log_z <= found.high)).sum()
            assert fewest_covered(confidence) <= inside <= fewest_covered(confidence, 1 - FALSE_ALARM)
            assert (found.high - found.low).mean() < 20 * np.abs(found.value - log_z).mean()

    @pytest.mark.parametrize("options", [{"probes": 0}, {"probes": 4}, {"method": "s-2ls"}, {"method": "hierarchical"}])
    def test_every_method_that_estimates_can_be_calibrated(self, options):
        index, calibrating, fresh = made(tree="hierarchical" in str(options))
        calibrated = index.calibrate(calibrating, temperatures=T, **options)
        draws = calibrated.sample(fresh, temperature=T, **options)
        measured = distances(index, fresh, T, **options)[0]
        assert (measured <= draws.error).sum() >= fewest_covered(0.9)
        # Informative: not simply 1.
        assert draws.error.mean() < 1 - 0.3 * (1 - measured.mean())
        assert calibrated.sample(fresh, temperature=T).confidence is None

    def test_only_exchangeability_matters_so_the_order_of_the_queries_does_not(self, sparse):
        index, calibrated, calibrating, fresh = sparse
        again = index.calibrate(calibrating[::-1].copy(), temperatures=[0.1, T], confidence=0.9)
        for temperature in (T, 0.07, 0.1):
            first, second = (one.sample(fresh, temperature=temperature, seed=1) for one in (calibrated, again))
            np.testing.assert_allclose(first.error, second.error, atol=1e-12)

    def test_the_error_is_the_conformal_quantile_from_its_definition(self, sparse):
        index, calibrated, calibrating, fresh = sparse
        stated = index.sample(calibrating, temperature=T).error
        scores = np.sort((distances(index, calibrating, T)[0] - stated) / (stated + SCALE))
        factor = scores[conformal_rank(CALIBRATED, 0.9) - 1]
        plain = index.sample(fresh, temperature=T).error
        expected = np.clip(plain + factor * (plain + SCALE), 0, 1)
        np.testing.assert_allclose(calibrated.sample(fresh, temperature=T).error, expected, atol=1e-6)
        assert calibrated.sample(fresh[0], temperature=T).error == pytest.approx(expected[0], abs=1e-6)


class TestWhatIsCovered:
    def test_temperatures_between_are_covered_and_never_lower_the_error(self, sparse):
        index, calibrated, _, fresh = sparse
        for temperature in (0.055, 0.07, 0.09):
            draws = calibrated.sample(fresh, temperature=temperature, seed=1)
            assert draws.confidence == 0.9
            assert (draws.error >= index.sample(fresh, temperature=temperature, seed=1).error).all()

    @pytest.mark.parametrize(
        "options",
        [
            {"temperature": 0.049},
            {"temperature": 0.101},
            {"probes": 3},
            {"probes": 0},
            {"tolerance": 0.01},
            {"method": "s-2ls"},
            {"method": "exact"},
            {"method": "certified"},
            {"exclude": [1, 2]},
            {"top_p": 0.9},
            {"replace": False},
            {"method": "top-k"},
        ],
    )
    def test_other_options_are_not_covered_and_say_so(self, sparse, options):
        index, calibrated, _, fresh = sparse
        call = {"temperature": T, "seed": 1, **options}
        draws, plain = (one.sample(fresh[:20], **call) for one in (calibrated, index))
        assert draws.confidence is None
        np.testing.assert_array_equal(draws.error, plain.error)

    def test_the_same_tolerance_in_words_is_covered(self, sparse):
        assert sparse[1].sample(sparse[3], temperature=T, tolerance=0.03).confidence == 0.9

    def test_the_draws_and_the_first_index_stay_as_they_are(self, sparse):
        index, calibrated, _, fresh = sparse
        first, second = (one.sample(fresh, 3, temperature=T, seed=4) for one in (index, calibrated))
        np.testing.assert_array_equal(first.ids, second.ids)
        np.testing.assert_array_equal(first.log_prob, second.log_prob)
        assert index.calibration is None
        assert first.confidence is None
        assert calibrated.items.vectors.base is index.items.vectors.base

    def test_laws_of_another_version_are_not_covered(self, sparse):
        _, calibrated, _, fresh = sparse
        old = calibrated.calibration
        aged = replace(old, setting=replace(old.setting, softindex="0.0.1"))
        assert calibrated.with_calibration(aged).sample(fresh, temperature=T).confidence is None

    def test_build_calibrates_the_default_at_once(self):
        family = open_family("sparse", n=1000, d=8, queries=100)
        for dispersion, method in (("auto", "sd-2ls"), ("none", "s-2ls")):
            index = softindex.build(family.items, dispersion=dispersion, queries=family.queries[STANDARD])
            draws = index.sample(family.items[:3], temperature=0.1, method=method)
            assert draws.confidence == 0.9
            assert index.calibration.queries == 100


class TestSaving:
    def test_a_calibration_is_saved_with_the_index(self, sparse, tmp_path):
        _, calibrated, _, fresh = sparse
        calibrated.save(tmp_path / "index")
        for mmap in (True, False):
            loaded = softindex.load(tmp_path / "index", mmap=mmap, verify=True)
            assert loaded.parameters == calibrated.parameters
            assert loaded.calibration.parameters() == calibrated.calibration.parameters()
            for temperature in (T, 0.08):
                first, second = (one.sample(fresh, temperature=temperature, seed=2) for one in (calibrated, loaded))
                np.testing.assert_array_equal(first.error, second.error)
                assert second.confidence == 0.9
        loaded.save(tmp_path / "again")
        assert softindex.load(tmp_path / "again").calibration.queries == CALIBRATED

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"calibration": {"confidence": 0.9}}, "its calibration is described by"),
            ({"calibration": None}, "does not belong to it"),
            ({"confidence": 1.5}, "its calibration is described by"),
            ({"method": "sd-3ls"}, "its calibration is described by"),
            ({"probes": "many"}, "its calibration is described by"),
        ],
    )
    def test_a_calibration_that_lies_is_refused(self, sparse, tmp_path, change, said):
        sparse[1].save(tmp_path / "index")
        stored = load_stored(tmp_path / "index", kind="index")
        parameters = dict(stored.parameters)
        if "calibration" in change:
            parameters |= change
        else:
            parameters["calibration"] = {**parameters["calibration"], **change}
        save_stored(tmp_path / "index", Stored("index", parameters, dict(stored.arrays), version=stored.version))
        with pytest.raises(CorruptIndexError, match=said):
            softindex.load(tmp_path / "index")

    @pytest.mark.parametrize(
        ("name", "values", "said"),
        [
            ("temperatures", np.array([0.2, 0.1]), "do not increase"),
            ("temperatures", np.zeros(2), "do not increase"),
            ("errors", np.full((2, 5), np.nan), "values that no index has"),
            ("errors", np.zeros((3, 5)), "axis 0"),
            ("log_partitions", np.full((2, 5), -1.0), "values that no index has"),
            ("errors", np.zeros((2, 0)), "no queries"),
        ],
    )
    def test_arrays_that_do_not_fit_are_refused(self, sparse, tmp_path, name, values, said):
        sparse[1].save(tmp_path / "index")
        stored = load_stored(tmp_path / "index", kind="index")
        queries = values.shape[1] if values.ndim == 2 else 5
        arrays = {**stored.arrays, "calibration_temperatures": np.array([0.1, 0.2])}
        arrays |= {f"calibration_{part}": np.zeros((2, queries)) for part in ("errors", "log_partitions")}
        arrays[f"calibration_{name}"] = values
        save_stored(tmp_path / "index", Stored("index", stored.parameters, arrays, version=stored.version))
        with pytest.raises(CorruptIndexError, match=said):
            softindex.load(tmp_path / "index")


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "error", "said"),
        [
            ({"confidence": 0.999}, InputError, "are 200 queries to calibrate with, but .* takes at least 999"),
            ({"confidence": 1.0}, InputError, "confidence is 1.0"),
            ({"method": "exact"}, MethodError, "exact has no error to calibrate"),
            ({"method": "certified"}, MethodError, "certified has no error to calibrate"),
            ({"method": "top-k"}, MethodError, "top-k has no error to calibrate"),
            ({"method": "best"}, MethodError, "there is no method 'best'"),
            ({"temperatures": []}, InputError, "there are no temperatures"),
            ({"temperatures": [-1]}, InputError, "temperature is -1"),
            ({"probes": -3}, InputError, "probes is -3"),
        ],
    )
    def test_it_is_refused_in_a_sentence(self, sparse, options, error, said):
        with pytest.raises(error, match=said):
            sparse[0].calibrate(sparse[2], **options)

    def test_build_refuses_too_few_queries_before_it_begins(self, monkeypatch):
        monkeypatch.setattr("softindex.builder._build", lambda *_: pytest.fail("the work has begun"))
        with pytest.raises(InputError, match="there is 1 query to calibrate with"):
            softindex.build(np.eye(5, dtype=np.float32), queries=np.ones(5))
        with pytest.raises(InputError, match="have 4 dimensions"):
            softindex.build(np.eye(5, dtype=np.float32), queries=np.ones((20, 4)))


class TestRanks:
    def test_the_fewest_queries_are_enough_and_one_less_is_not(self):
        for confidence in (0.1, 0.5, 0.9, 0.95, 0.99, 0.999):
            least = fewest_queries(1, confidence)
            assert conformal_rank(least, confidence) <= least
            assert least == 1 or conformal_rank(least - 1, confidence) > least - 1

    def test_temperatures_are_refined_to_small_steps_and_kept(self):
        grid = refine([0.2, 0.02, 0.05])
        assert {0.02, 0.05, 0.2} <= set(grid)
        ratios = np.array(grid[1:]) / np.array(grid[:-1])
        assert (ratios > 1).all()
        assert (ratios <= STEP * (1 + 1e-9)).all()
        assert refine([3.0]) == [3.0]


class TestBounds:
    def test_without_a_calibration_the_value_is_the_default_within_the_bounds(self):
        index, _, fresh = made("lognormal lengths")
        log_z = distances(index, fresh[:50], T)[1]
        for options in ({}, {"method": "certified"}):
            found = index.log_partition(fresh[:50], temperature=T, confidence=0.5, **options)
            default = index.log_partition(fresh[:50], temperature=T).value
            assert found.guarantee == "bound"
            np.testing.assert_array_equal(found.value, np.clip(default, found.low, found.high))
            assert np.abs(found.value - log_z).max() <= np.abs(default - log_z).max() + 1e-6
        one = index.log_partition(fresh[0], temperature=T, confidence=0.5)
        assert isinstance(one.value, float)

    def test_what_a_calibration_does_not_cover_has_the_wide_bound(self, sparse):
        _, calibrated, _, fresh = sparse
        for options in ({"temperature": 0.2}, {"width": 0.1}, {"confidence": 0.9999}, {"method": "certified"}):
            call = {"temperature": T, "confidence": 0.9, **options}
            assert calibrated.log_partition(fresh[:5], **call).guarantee == "bound"
        assert calibrated.log_partition(fresh[:5], temperature=T).guarantee is None
        assert calibrated.log_partition(fresh[:5], temperature=T, method="exact").guarantee == "proven"
        excluded = calibrated.log_partition(fresh[:5], temperature=T, confidence=0.9, exclude=[1])
        assert excluded.guarantee == "proven"

    def test_a_tree_has_no_log_z_to_calibrate(self):
        index, calibrating, fresh = made(tree=True)
        calibrated = index.calibrate(calibrating, temperatures=T, method="hierarchical")
        with pytest.raises(MethodError, match="does not estimate log Z"):
            calibrated.log_partition(fresh, temperature=T, method="hierarchical", confidence=0.9)


def test_an_audit_reports_coverage(sparse):
    _, calibrated, _, fresh = sparse
    found = calibrated.audit(fresh, temperatures=[T, 0.4], methods=["sd-2ls", "sd-2ls:0", "exact", "sd-2ls:4"])
    rows = {(row.method, row.temperature): row for row in found.rows}
    row = rows["sd-2ls", T]
    assert row.confidence == 0.9
    assert row.covered * FRESH >= fewest_covered(0.9)
    measured = distances(calibrated, fresh, T)[0]
    errors = calibrated.sample(fresh, temperature=T).error
    assert row.covered == pytest.approx((measured <= errors).mean(), abs=0.01)
    assert row.exceeded == pytest.approx((measured > 2 * errors + 0.01).mean(), abs=0.01)
    assert "of 90%" in row.cells()["covered"]
    assert rows["sd-2ls", 0.4].confidence is None
    assert rows["sd-2ls:4", T].covered is not None
    assert rows["sd-2ls:0", T].covered is None
    assert rows["exact", T].covered is None
    assert json.dumps(found.to_dict())
