"""Types of the compiled core; kernels/reference.py says what each function computes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK: int
LANES: int

class Law:
    """How the mass of a cluster is found: see softindex.laws."""

    def __init__(self, kind: str, *, size: bool = False, dispersion: bool = False) -> None: ...
    @property
    def kind(self) -> str: ...
    @property
    def size(self) -> bool: ...
    @property
    def dispersion(self) -> bool: ...

class Restriction:
    """Which part of a law is drawn from: one row of excluded positions for all queries, or one for each."""

    def __init__(
        self,
        offsets: NDArray[np.int64],
        excluded: NDArray[np.int64],
        replace: bool = True,
        top_p: float = 1.0,
        k: int = 0,
    ) -> None: ...

class Request:
    """What a call wants of an engine.  queries (b, d); probes below 0: as many as the answer needs."""

    def __init__(
        self,
        queries: NDArray[np.float32],
        law: Law,
        temperature: float,
        probes: int = 0,
        tolerance: float = 0.0,
        restriction: Restriction | None = None,
        seed: int = 0,
        threads: int = 1,
    ) -> None: ...
    def bound(self, width: float, confidence: float) -> None: ...

class DrawResults:
    """Arrays to write draws to.

    positions, log_prob, low, high (b, n); scored, left (b,); statistics (4, b): error, log Z, its lower and its upper
    bound.  low and high are for certified draws, left for restricted ones.
    """

    def __init__(
        self,
        positions: NDArray[np.int64],
        log_prob: NDArray[np.float64],
        scored: NDArray[np.int64],
        statistics: NDArray[np.float64],
        low: NDArray[np.float64] | None = None,
        high: NDArray[np.float64] | None = None,
        left: NDArray[np.int64] | None = None,
    ) -> None: ...

class BestResults:
    """Arrays to write the best items to.  positions, scores, proven (b, k); gap, scored (b,)."""

    def __init__(
        self,
        positions: NDArray[np.int64],
        scores: NDArray[np.float32],
        proven: NDArray[np.bool_],
        gap: NDArray[np.float64],
        scored: NDArray[np.int64],
    ) -> None: ...

class Engine:
    """An index, ready for requests.  arrays: by the names they have on disk; ValueError if they do not fit together."""

    def __init__(self, arrays: dict[str, NDArray[Any]], target: str = "") -> None: ...
    def sample(self, request: Request, results: DrawResults) -> None: ...
    def log_prob(self, request: Request, positions: NDArray[np.int64], log_prob: NDArray[np.float64]) -> None: ...
    def log_partition(self, request: Request, values: NDArray[np.float64], scored: NDArray[np.int64]) -> None: ...
    def top_k(self, request: Request, results: BestResults) -> None: ...
    def masses(
        self,
        request: Request,
        log_masses: NDArray[np.float64],
        error: NDArray[np.float64],
        scored: NDArray[np.int64],
    ) -> None: ...
    def coded_scores(self, request: Request, cluster: int, scores: NDArray[np.float32]) -> float: ...
    def mass_bounds(
        self,
        request: Request,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        scanned: NDArray[np.float64],
    ) -> float: ...

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
