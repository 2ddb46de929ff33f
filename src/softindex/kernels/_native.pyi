"""
The compiled core; kernels/reference.py defines what each function computes.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray

def targets() -> list[str]:
    """
    Return the names of the instruction sets that this CPU runs, best first.
    """

def scan(
    rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    dots: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
    target: str = "",
) -> None:
    """
    Fill dots (n,) with the dot products of rows (n, d) and the query (d,).
    """

def scan_many(
    rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    dots: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    target: str = "",
) -> None:
    """
    Fill dots (b, n) with the dot products of rows (n, d) and one query or more (b, d).
    """

def scan_int16(
    rows: Annotated[NDArray[numpy.int16], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    dots: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    target: str = "",
) -> None:
    """
    Fill dots (b, n) with the dot products of 16-bit rows (n, d) and one to four queries (b, d).
    """

def scan_int8(
    rows: Annotated[NDArray[numpy.int8], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    queries: Annotated[NDArray[numpy.int16], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    dots: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu")],
    target: str = "",
) -> None:
    """
    Fill dots (b, n) with exact dot products of 8-bit rows (n, d) and 16-bit queries (b, d).
    """

def scan_residuals_int8(
    integers: Annotated[NDArray[numpy.int8], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    scales: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    centre_dots: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    dots: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    target: str = "",
) -> None:
    """
    Fill dots (b, n) with the dot products of items kept in 8 bits and one query or more (b, d).
    """

def scan_residuals_int16(
    integers: Annotated[NDArray[numpy.int16], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    scales: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    centre_dots: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    dots: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    target: str = "",
) -> None:
    """
    Fill dots (b, n) with the dot products of items kept in 16 bits and one query or more (b, d).
    """

def sketch_masks(
    values: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    scales: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    queries: Annotated[NDArray[numpy.int8], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    limits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    masks: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu")],
    target: str = "",
) -> None:
    """
    Fill masks (b, blocks) with a bit for every item of a sketch that reaches its query's limits (b, 2).
    """

def outer_product(
    query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    packed: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
    target: str = "",
) -> None:
    """
    Fill packed (d (d + 1) / 2,) with the products q_i q_j, i <= j, of the query (d,).
    """

def square_sums(
    dots: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    scales: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    sums: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
    target: str = "",
) -> None:
    """Fill sums (k,) with the sums of squares of dots * scales, both (k, r)."""

def decode(
    dots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    scales: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    base: float,
    step: float,
    scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
    target: str = "",
) -> None:
    """Fill scores (m,) with base + step * scales * dots."""

def weigh(
    dots: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    temperature: float,
    bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    weights: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
    prefix: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
    target: str = "",
) -> float:
    """
    Fill weights (n,) and prefix (ceil(n / 64),) of a softmax over dots (n,); return the log of its sum.
    """

def weigh_masses(
    log_masses: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    weights: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
    prefix: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
    target: str = "",
) -> float:
    """
    Fill weights (k,) and prefix (ceil(k / 64),) from log masses (k,); return the log of their sum.
    """

def pick(
    weights: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    prefix: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    uniform: float,
    target: str = "",
) -> int:
    """
    Return the position whose share of the total weight contains the point uniform in [0, 1).
    """

def philox(key: int, low: int, high: int) -> list[int]:
    """
    Return the four 32-bit words of Philox 4x32-10 for a 64-bit key and a 128-bit counter.
    """

def uniforms(key: int, stream: int, draw: int) -> list[float]:
    """Return the two uniforms in [0, 1) of one draw."""

def hash_bytes(data: bytes) -> int:
    """Return the 64-bit hash of bytes."""

def dot_error(d: int) -> float:
    """
    Return a bound on the error of a float32 dot product of d numbers, relative to the product of the norms.
    """

BLOCK: int = 64

LANES: int = 16

def block_sums(
    data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    block_bytes: int,
    sums: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """Write the checksum of every block of the bytes."""

class Guard:
    def __init__(
        self,
        data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        sums: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        block_bytes: int,
        name: str,
    ) -> None: ...
    def check_all(self) -> None:
        """RuntimeError where a byte differs from what was written."""

class IntegerTable:
    def __init__(
        self,
        keys: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None: ...
    def find(
        self,
        wanted: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        found: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        Fill found (m,) with the positions of ids (m,), -1 where there is none; return how often that is.
        """

class StringTable:
    def __init__(
        self,
        text: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        hashes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        key: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None: ...
    def find(
        self, wanted: list[Any], found: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")]
    ) -> int:
        """
        Fill found (m,) likewise for strings; return how often there is none, or -1 if not all are strings.
        """

    def find_points(
        self,
        wanted: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        found: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> int:
        """
        The same for strings given as code points (m, length), padded with zeros.
        """

def strings_at(
    text: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
) -> list[str]:
    """Return the strings at positions (m,) of a text with ends (n,)."""

def read_integers(
    values: list[Any], integers: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")]
) -> bool:
    """
    Fill integers (m,) from a list; return whether all are int and fit into 64 bits.
    """

def hash_strings(
    text: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    key: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    hashes: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """
    Fill hashes (m,) with the hashes of strings in text, with ends (m,), under a key (2,).
    """

class Law:
    def __init__(self, kind: str, *, size: bool = False, dispersion: bool = False) -> None: ...
    @property
    def kind(self) -> str: ...
    @property
    def size(self) -> bool: ...
    @property
    def dispersion(self) -> bool: ...

class Restriction:
    def __init__(
        self,
        offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        replace: bool = True,
        top_p: float = 1.0,
        k: int = 0,
        allows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
    ) -> None: ...

class Request:
    def __init__(
        self,
        queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        law: Law,
        temperature: float
        | Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        probes: int = 0,
        tolerance: float = 0.0,
        restriction: object | None = None,
        seed: int = 0,
        threads: int = 1,
    ) -> None: ...
    def bound(self, width: float, confidence: float) -> None: ...
    def limit(self, items: int, margin: float = 0.0) -> None: ...

class DrawResults:
    def __init__(
        self,
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
        log_prob: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
        scored: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
        statistics: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
        low: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")] | None = None,
        high: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")] | None = None,
        left: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")] | None = None,
    ) -> None: ...

class BestResults:
    def __init__(
        self,
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
        scores: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
        proven: Annotated[NDArray[numpy.bool_], dict(shape=(None, None), order="C", device="cpu")],
        statistics: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
        scored: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> None: ...

class Engine:
    def __init__(self, arrays: dict[str, Any], target: str = "", guards: dict[str, Guard] = {}) -> None: ...
    def sample(self, request: Request, results: DrawResults) -> None: ...
    def log_prob(
        self,
        request: Request,
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        log_prob: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
    ) -> None: ...
    def log_partition(
        self,
        request: Request,
        values: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
        scored: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> None: ...
    def top_k(self, request: Request, results: BestResults) -> None: ...
    def masses(
        self,
        request: Request,
        log_masses: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
        error: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
        scored: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    ) -> None: ...
    def coded_scores(
        self,
        request: Request,
        cluster: int,
        scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
    ) -> float: ...
    def mass_bounds(
        self,
        request: Request,
        lower: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
        upper: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
        scanned: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
    ) -> float: ...

def probing_constants() -> dict[str, float]: ...
def screen(
    codes: Annotated[NDArray[numpy.int8], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    queries: Annotated[NDArray[numpy.int16], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    dots: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
    threads: int,
    which: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)] | None = None,
    target: str = "",
) -> None:
    """
    Fill dots (b, m) with exact dot products of 8-bit codes (n, d), all or some, and 16-bit queries (b, padded(d)).
    """

def screen_nibbles(
    codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    queries: Annotated[NDArray[numpy.int8], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    dots: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
    threads: int,
    which: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)] | None = None,
    target: str = "",
) -> None:
    """
    Fill dots (b, m) with exact dot products of 4-bit codes (n, 32 c), all or some, and 8-bit queries (b, 64 c).
    """

def widen(
    rows: Annotated[NDArray[numpy.uint16], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    brain: bool,
    wide: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
) -> None:
    """
    Fill wide (n, d) with rows (n, d) of finite bfloat16 (brain) or float16 bits as float32.
    """

def double_dots(
    rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
    which: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    query: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    dots: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
    target: str = "",
) -> None:
    """
    Fill dots (m,) with the dot products, in double, of the rows which (m,) with the query (d,).
    """

class PacGoal:
    """What is asked of all queries of a call of Pac."""

    def __init__(
        self, k: int, epsilon: float, quantiles: Sequence[float], inverse_temperature: float, seed: int
    ) -> None: ...
    @property
    def k(self) -> int: ...

class PacExclusions:
    """Rows that the queries of a call leave out."""

    def __init__(
        self,
        offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> None: ...

class PacAnswers:
    """
    Arrays to fill: rows, scores and log_prob (b, k), log_z (b, 3), costs (b, 4).
    """

    def __init__(
        self,
        rows: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
        scores: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
        log_prob: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
        log_z: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
        costs: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
    ) -> None: ...

class Pac:
    """
    Answers with the guarantee pac, for the weights (n, d) and what was computed of them.
    """

    def __init__(self, weights: object, arrays: dict[str, object], used: int) -> None: ...
    def answer(
        self,
        queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        limit: float,
        goal: PacGoal,
        exclusions: PacExclusions | None,
        threads: int,
        answers: PacAnswers,
        target: str = "",
    ) -> None:
        """
        Answer queries (b, d), or refuse those whose squared length exceeds the limit.
        """

    def answer_one(
        self,
        query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        limit: float,
        goal: PacGoal,
        threads: int,
        rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
        scores: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
        log_prob: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
        proven: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order="C", device="cpu")],
    ) -> tuple[int, int, int, int, float, float, float]:
        """
        The same for one query (d,): fill arrays (k,), return its costs and log_z.
        """

    @property
    def n(self) -> int: ...
    def look(
        self,
        query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        seed: int,
        which: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
        found: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu")],
        target: str = "",
    ) -> int:
        """
        Draw columns of a query into which (m,), fill found (3, n) with estimates, variances and rare terms.
        """

    def answer_sparse(
        self,
        offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        columns: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        goal: PacGoal,
        exclusions: PacExclusions | None,
        threads: int,
        answers: PacAnswers,
    ) -> None:
        """
        Answer queries that have values at increasing columns, and zeros elsewhere.
        """

class Mixture:
    """
    Items of a learned similarity; reads the arrays where they are.
    Queries (b, parts / 4 rounded up, d, 4) hold four components at a time, padded with zeros.
    """

    def __init__(self, arrays: dict[str, Any], query_parts: int, target: str = "") -> None:
        """
        The arrays by the names they are stored under: components, averages and, if there are some, gates, gate.*,
        clusters.*
        """

    def best(
        self,
        queries: Annotated[
            NDArray[numpy.float32], dict(shape=(None, None, None, None), order="C", device="cpu", writable=False)
        ],
        gates: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        excluded: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        threads: int,
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
        scores: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    ) -> None:
        """
        Fill positions and scores (b, keep) with the best items, best first; -1 where there are fewer.
        """

    @property
    def screens(self) -> bool:
        """Whether best_screened is faster than best on this CPU."""

    def bound(
        self,
        queries: Annotated[
            NDArray[numpy.float32], dict(shape=(None, None, None, None), order="C", device="cpu", writable=False)
        ],
        gates: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        slacks: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        threads: int,
        bounds: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    ) -> None:
        """
        Fill bounds (b, n) with upper bounds on the scores, up to rounding errors.
        """

    def best_screened(
        self,
        queries: Annotated[
            NDArray[numpy.float32], dict(shape=(None, None, None, None), order="C", device="cpu", writable=False)
        ],
        gates: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        excluded: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        k: int,
        width: int,
        slacks: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        margins: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)],
        threads: int,
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
        scores: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
        outside: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
    ) -> None:
        """
        Fill positions and scores (b, keep) with the best items among those whose bounds reach the k best, and
        outside (b,) with a bound on the scores of all others; `width` items with the largest bounds are looked at.
        """

    def best_average(
        self,
        queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)],
        offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        excluded: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        threads: int,
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
    ) -> None:
        """
        Fill positions (b, keep), increasing, with the items of largest dot product of average and query (b, d).
        """

    def best_clustered(
        self,
        queries: Annotated[
            NDArray[numpy.float32], dict(shape=(None, None, None, None), order="C", device="cpu", writable=False)
        ],
        gates: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        excluded: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        scanned: int,
        threads: int,
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
    ) -> None:
        """
        Fill positions (b, keep), increasing, with the best of about `scanned` items of promising clusters.
        Excluded items are given by their places in the order of the clusters.
        """

    def largest(
        self,
        queries: Annotated[
            NDArray[numpy.float32], dict(shape=(None, None, None, None), order="C", device="cpu", writable=False)
        ],
        offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        excluded: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        threads: int,
        largest: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
        listed: Annotated[NDArray[numpy.int64], dict(shape=(None, None, None), order="C", device="cpu")] | None,
    ) -> None:
        """
        Fill largest (b, n) with each item's largest logit and listed (b, pairs, keep) with each pair's best items.
        """

    def score_listed(
        self,
        queries: Annotated[
            NDArray[numpy.float32], dict(shape=(None, None, None, None), order="C", device="cpu", writable=False)
        ],
        gates: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        threads: int,
        scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
    ) -> None:
        """
        Fill scores (total,) of listed items: those of query q are positions[offsets[q]:offsets[q + 1]].
        """

    def best_listed(
        self,
        queries: Annotated[
            NDArray[numpy.float32], dict(shape=(None, None, None, None), order="C", device="cpu", writable=False)
        ],
        gates: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        listed: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        threads: int,
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu")],
        scores: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu")],
    ) -> None:
        """
        Fill positions and scores (b, keep) with the best of listed items, whose positions increase; best first.
        """

    def score_precisely(
        self,
        queries: Annotated[
            NDArray[numpy.float64], dict(shape=(None, None, None, None), order="C", device="cpu", writable=False)
        ],
        gates: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order="C", device="cpu", writable=False)]
        | None,
        offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        threads: int,
        scores: Annotated[NDArray[numpy.float64], dict(shape=(None,), order="C", device="cpu")],
    ) -> None:
        """Fill scores (total,) of listed items as score_listed does, in double."""
