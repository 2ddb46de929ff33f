"""Train SASRec with MIDX samplers of several sizes and with learned codebooks, and compare.

    python -m experiments.codewords --data Beauty.txt.gz --epochs 3 --out runs/codewords --page page.md
    python -m experiments.codewords --data Beauty.txt.gz --out runs/codewords --diagnose --page page.md

Model, data and settings are those of experiments.sequential_recommendation.  A method is a kind of index and a number
of codewords: rq-8 to rq-128 (residual codes as published), weighted-8 to weighted-128, learned-64; rq-3x16 has three
codebooks of 16, weighted-4x8 four of 8; full is the full softmax.  --diagnose trains nothing: it measures samplers
of every size on the model that the full softmax trained.
"""

from pathlib import Path

import torch

from benchmarks.tables import Table, check_place, place
from experiments.harness.command import Task, compare, parser_of
from experiments.harness.runs import Run
from experiments.harness.sequences import load_sequences, pad
from experiments.sequential_recommendation import METRICS, PUBLISHED, SMALL, Recommender
from softindex.train import MIDXSampler, diagnose

SIZES = (8, 16, 32, 64, 128)
CODEBOOKS = 2
KINDS = {"rq": "MIDX, residual codes", "weighted": "MIDX, weighted"}
MORE = ((3, 16), (4, 8))
"""Three and four codebooks that give as many clusters as two of 64."""
METHODS = {
    "full": "full softmax",
    **{f"{kind}-{size}": f"{title}, {size} codewords" for kind, title in KINDS.items() for size in SIZES},
    **{
        f"{kind}-{books}x{size}": f"{title}, {books} codebooks of {size}"
        for kind, title in KINDS.items()
        for books, size in MORE
    },
    "learned-64": "MIDX, learned codebooks, 64 codewords",
}
SHAPES = [*((CODEBOOKS, size) for size in SIZES), (3, 8), (3, 16), (4, 4), (4, 8)]
"""Codebooks and codewords in each of the samplers that --diagnose measures."""
DIAGNOSED, DRAWS = "codewords-diagnosed", 50
QUERIES = 256


class SizedRecommender(Recommender):
    """SASRec with an index of a given size."""

    def __init__(self, taken, items, settings, method, seed):
        kind, _, size = method.partition("-")
        known = {"rq": "midx-rq", "weighted": "midx-beyond"}.get(kind, kind)
        books, _, words = size.rpartition("x")
        super().__init__(
            taken, items, settings, known, seed, codewords=int(words or 0), codebooks=int(books or CODEBOOKS)
        )


def task_of(options):
    """The experiment that a command line describes."""
    taken, items, name = load_sequences(options.data)
    settings = SMALL if options.data is None else PUBLISHED
    return Task(
        name="codewords",
        title=f"Number of codewords, {name}",
        settings={"users": len(taken), "items": items, **settings},
        make=lambda method, seed: SizedRecommender(taken, items, settings, method, seed),
        metrics=METRICS,
        chosen_by="ndcg@10",
        lower_is_better=False,
        methods=METHODS,
    )


@torch.no_grad()
def measure(task, options):
    """Print how close samplers of every size are to the softmax of the model that the full softmax trained."""
    run = Run(task, "full", options.seed, options.out)
    if not run.checkpoint.exists():
        raise SystemExit(f"{run.checkpoint} does not exist; train it with --methods full first.")
    trainer, progress = run.resume()
    trainer.model.load_state_dict(progress.best)
    trainer.model.eval()
    items, length = trainer.model.items.weight, trainer.length
    taken = trainer.taken[:: max(1, len(trainer.taken) // (8 * QUERIES))]
    # Queries of other users refresh the samplers.
    every = trainer.model(pad([sequence[:-2] for sequence in taken], length))[:, -1]
    targets = torch.tensor([int(sequence[-2]) for sequence in taken])
    held, rows = torch.arange(len(taken)) % 8 == 0, []
    for kind, title in {"pq": "MIDX, product codes", **KINDS}.items():
        for books, size in SHAPES:
            sampler = MIDXSampler(len(items), codewords=size, codebooks=books, quantizer="pq" if kind == "pq" else "rq",
                                  residual="weighted" if kind == "weighted" else "uniform", threads=1)  # fmt: skip
            data = {"frequencies": trainer.frequencies, "queries": every[~held]} if kind == "weighted" else {}
            sampler.refresh(items, **data)
            random = torch.Generator().manual_seed(0)
            one = diagnose(sampler, every[held], items, positives=targets[held], draws=DRAWS, generator=random)
            numbers = (f"{one.kl:.3f}", f"{one.effective:.1%}", f"{one.gradient_rmse:.3f}")
            rows.append([title, str(books), str(size), *numbers])
    measured = ["KL(softmax ‖ q)", "effective draws", f"gradient RMSE, {DRAWS} draws"]
    columns = ["sampler", "codebooks", "codewords", *measured]
    table = Table(f"{int(held.sum())} validation queries, {len(progress.history)} epochs", columns, rows).markdown()
    print(table)
    if options.page is not None:
        place(options.page, DIAGNOSED, f"\n{table}\n")


def main():
    """Compare the sizes."""
    parser = parser_of(__doc__, METHODS)
    parser.add_argument("--data", type=Path, help="file of sequences, plain or .gz")
    parser.add_argument("--diagnose", action="store_true", help="measure samplers on the trained model instead")
    options = parser.parse_args()
    task = task_of(options)
    if options.diagnose:
        if options.page is not None:
            check_place(options.page, DIAGNOSED)
        torch.set_num_threads(options.threads)
        measure(task, options)
    else:
        compare(task, options, options.epochs or 3)


if __name__ == "__main__":
    main()
