"""Types of the compiled core; kernels/reference.py says what each function computes."""

import numpy as np
from numpy.typing import NDArray

BLOCK: int
LANES: int

class Law:
    def __init__(self, offset: NDArray[np.float64] | None, dispersion: bool, kind: str) -> None: ...

class Restriction:
    def __init__(
        self,
        offsets: NDArray[np.int64],
        excluded: NDArray[np.int64],
        replace: bool,
        top_p: float,
        k: int,
        probes: int,
    ) -> None: ...

class Engine:
    def __init__(
        self,
        vectors: NDArray[np.float32],
        offsets: NDArray[np.int64],
        means: NDArray[np.float32],
        radii: NDArray[np.float32],
        norm_max: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        bias_max: NDArray[np.float32] | None,
        full_forms: NDArray[np.int16] | None,
        rank_forms: NDArray[np.int8] | None,
        scales: NDArray[np.float32] | None,
        spread: NDArray[np.float32] | None,
        target: str = "",
    ) -> None: ...
    def attach_codes(
        self,
        codes: NDArray[np.int8],
        scales: NDArray[np.float32],
        errors: NDArray[np.float32],
        lengths: NDArray[np.float32],
    ) -> None: ...
    def coded_scores(self, query: NDArray[np.float32], cluster: int, scores: NDArray[np.float32]) -> float: ...
    def mass_bounds(
        self,
        query: NDArray[np.float32],
        law: Law,
        temperature: float,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        scanned: NDArray[np.float64],
    ) -> float: ...
    def attach_tree(
        self,
        children: NDArray[np.int64],
        means: NDArray[np.float32],
        full_forms: NDArray[np.int16] | None,
        rank_forms: NDArray[np.int8] | None,
        scales: NDArray[np.float32] | None,
        spread: NDArray[np.float32] | None,
    ) -> None: ...
    def sample(
        self,
        queries: NDArray[np.float32],
        law: Law,
        temperature: float,
        probes: int,
        tolerance: float,
        seed: int,
        threads: int,
        positions: NDArray[np.int64],
        log_prob: NDArray[np.float64],
        scored: NDArray[np.int64],
        error: NDArray[np.float64],
    ) -> None: ...
    def log_prob(
        self,
        queries: NDArray[np.float32],
        law: Law,
        temperature: float,
        probes: int,
        tolerance: float,
        positions: NDArray[np.int64],
        threads: int,
        log_prob: NDArray[np.float64],
    ) -> None: ...
    def sample_restricted(
        self,
        queries: NDArray[np.float32],
        law: Law,
        temperature: float,
        probes: int,
        tolerance: float,
        restriction: Restriction,
        seed: int,
        threads: int,
        positions: NDArray[np.int64],
        log_prob: NDArray[np.float64],
        scored: NDArray[np.int64],
        error: NDArray[np.float64],
        left: NDArray[np.int64],
    ) -> None: ...
    def log_prob_restricted(
        self,
        queries: NDArray[np.float32],
        law: Law,
        temperature: float,
        probes: int,
        tolerance: float,
        restriction: Restriction,
        positions: NDArray[np.int64],
        threads: int,
        log_prob: NDArray[np.float64],
    ) -> None: ...
    def log_partition(
        self,
        queries: NDArray[np.float32],
        law: Law,
        temperature: float,
        probes: int,
        tolerance: float,
        threads: int,
        values: NDArray[np.float64],
    ) -> None: ...
    def attach_bounds(
        self,
        norm_min: NDArray[np.float32],
        min_cosine: NDArray[np.float32] | None,
        reach: NDArray[np.float32] | None,
        excess: NDArray[np.float32] | None,
    ) -> None: ...
    def attach_outliers(self, positions: NDArray[np.int64], vectors: NDArray[np.float32], farthest: float) -> None: ...
    def sample_certified(
        self,
        queries: NDArray[np.float32],
        law: Law,
        temperature: float,
        seed: int,
        threads: int,
        positions: NDArray[np.int64],
        log_prob: NDArray[np.float64],
        low: NDArray[np.float64],
        high: NDArray[np.float64],
        scored: NDArray[np.int64],
    ) -> None: ...
    def bracket_log_partition(
        self,
        queries: NDArray[np.float32],
        law: Law,
        temperature: float,
        tolerance: float,
        confidence: float,
        seed: int,
        threads: int,
        values: NDArray[np.float64],
        low: NDArray[np.float64],
        high: NDArray[np.float64],
        scored: NDArray[np.int64],
    ) -> None: ...
    def masses(
        self,
        queries: NDArray[np.float32],
        law: Law,
        temperature: float,
        probes: int,
        tolerance: float,
        threads: int,
        log_masses: NDArray[np.float64],
        scored: NDArray[np.int64],
        error: NDArray[np.float64],
    ) -> None: ...
    def top_k(
        self,
        queries: NDArray[np.float32],
        temperature: float,
        probes: int,
        threads: int,
        positions: NDArray[np.int64],
        scores: NDArray[np.float32],
        scored: NDArray[np.int64],
    ) -> None: ...

def targets() -> list[str]: ...
def scan(
    rows: NDArray[np.float32], query: NDArray[np.float32], dots: NDArray[np.float32], target: str = ""
) -> None: ...
def scan_group(
    rows: NDArray[np.float32], queries: NDArray[np.float32], dots: NDArray[np.float32], target: str = ""
) -> None: ...
def weigh(
    dots: NDArray[np.float32],
    temperature: float,
    bias: NDArray[np.float32] | None,
    weights: NDArray[np.float32],
    prefix: NDArray[np.float64],
    target: str = "",
) -> float: ...
def weigh_masses(
    log_masses: NDArray[np.float64],
    weights: NDArray[np.float32],
    prefix: NDArray[np.float64],
    target: str = "",
) -> float: ...
def pick(weights: NDArray[np.float32], prefix: NDArray[np.float64], uniform: float, target: str = "") -> int: ...
def outer_product(query: NDArray[np.float32], packed: NDArray[np.float32], target: str = "") -> None: ...
def square_sums(
    dots: NDArray[np.int32], scales: NDArray[np.float32], sums: NDArray[np.float64], target: str = ""
) -> None: ...
def scan_int8(
    rows: NDArray[np.int8], queries: NDArray[np.int16], dots: NDArray[np.int32], target: str = ""
) -> None: ...
def scan_int16(
    rows: NDArray[np.int16], queries: NDArray[np.float32], dots: NDArray[np.float32], target: str = ""
) -> None: ...
def decode(
    dots: NDArray[np.int32],
    scales: NDArray[np.float32],
    base: float,
    step: float,
    scores: NDArray[np.float32],
    target: str = "",
) -> None: ...
def screen(
    codes: NDArray[np.int8],
    queries: NDArray[np.int16],
    dots: NDArray[np.int64],
    threads: int,
    target: str = "",
) -> None: ...
def screen_nibbles(
    codes: NDArray[np.uint8],
    queries: NDArray[np.int8],
    dots: NDArray[np.int64],
    threads: int,
    target: str = "",
) -> None: ...
def widen(rows: NDArray[np.uint16], brain: bool, wide: NDArray[np.float32]) -> None: ...
def double_dots(
    rows: NDArray[np.float32],
    which: NDArray[np.int64],
    query: NDArray[np.float64],
    dots: NDArray[np.float64],
    target: str = "",
) -> None: ...
def pull(
    blocks: NDArray[np.float32],
    which: NDArray[np.int64],
    queries: NDArray[np.float32],
    arms: NDArray[np.int64],
    scales: NDArray[np.float64],
    weights: NDArray[np.float64],
    state: NDArray[np.float64],
    target: str = "",
) -> None: ...

class Mixture:
    def __init__(
        self,
        items: NDArray[np.float32],
        gates: NDArray[np.float32] | None,
        averages: NDArray[np.float32],
        query_parts: int,
        first: NDArray[np.float32] | None,
        first_bias: NDArray[np.float32] | None,
        second: NDArray[np.float32] | None,
        second_bias: NDArray[np.float32] | None,
        target: str = "",
    ) -> None: ...
    def best(
        self,
        queries: NDArray[np.float32],
        gates: NDArray[np.float32] | None,
        offsets: NDArray[np.int64],
        excluded: NDArray[np.int64],
        threads: int,
        positions: NDArray[np.int64],
        scores: NDArray[np.float32],
    ) -> None: ...
    def best_average(
        self,
        queries: NDArray[np.float32],
        offsets: NDArray[np.int64],
        excluded: NDArray[np.int64],
        threads: int,
        positions: NDArray[np.int64],
    ) -> None: ...
    def largest(
        self,
        queries: NDArray[np.float32],
        offsets: NDArray[np.int64],
        excluded: NDArray[np.int64],
        threads: int,
        largest: NDArray[np.float32],
        listed: NDArray[np.int64] | None,
    ) -> None: ...
    def score_listed(
        self,
        queries: NDArray[np.float32],
        gates: NDArray[np.float32] | None,
        offsets: NDArray[np.int64],
        positions: NDArray[np.int64],
        threads: int,
        scores: NDArray[np.float32],
    ) -> None: ...
    def best_listed(
        self,
        queries: NDArray[np.float32],
        gates: NDArray[np.float32] | None,
        offsets: NDArray[np.int64],
        listed: NDArray[np.int64],
        threads: int,
        positions: NDArray[np.int64],
        scores: NDArray[np.float32],
    ) -> None: ...
    def score_precisely(
        self,
        queries: NDArray[np.float64],
        gates: NDArray[np.float64] | None,
        offsets: NDArray[np.int64],
        positions: NDArray[np.int64],
        threads: int,
        scores: NDArray[np.float64],
    ) -> None: ...

def philox(key: int, low: int, high: int) -> list[int]: ...
def uniforms(key: int, stream: int, draw: int) -> list[float]: ...
def hash_bytes(data: bytes) -> int: ...
def hash_strings(text: NDArray[np.uint8], ends: NDArray[np.int64], hashes: NDArray[np.uint64]) -> None: ...
def dot_error(d: int) -> float: ...
def probing_constants() -> dict[str, float]: ...
