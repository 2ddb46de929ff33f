"""Train and measure everything on a page of results, one command after the other.

    python -m experiments.publish training-results --data data --out runs
    python -m experiments.publish learned-similarity-results --data data --out runs --list

The data directory contains what experiments.prepare makes: wikitext-2/, Beauty.txt.gz and MovieLens-100K.tsv.gz.  A
page takes many hours of processor time; repeat the command to continue after an interruption.  --list only prints the
commands, which can also be run one by one.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

PAGES = {
    "training-results": (
        "language_model --data {data}/wikitext-2 --refresh 200 --out {out}/language-200 --page {page}",
        "language_model --data {data}/wikitext-2 --out {out}/language --page {page} --section language-model-20 "
        "--methods uniform@0.1,in-batch,sce,midx-beyond,midx-systematic,two-level-s,two-level-sd",
        "language_model --data {data}/wikitext-2 --costs --out {out}/language --page {page} --methods full,uniform,"
        "unigram,in-batch,sce,rece,midx-pq,midx-rq,midx-beyond,midx-systematic,two-level-s,two-level-sd",
        "table_age --data {data}/wikitext-2 --page {page}",
        "language_model --data {data}/wikitext-2 --methods midx-systematic --diagnose --out {out}/language "
        "--page {page}",
        "sequential_recommendation --data {data}/Beauty.txt.gz --out {out}/recommendation --methods uniform@0.3,"
        "uniform@3,in-batch,sce,rece,sphere,lsh,random-features,midx-pq,midx-rq,midx-systematic,learned",
        "sequential_recommendation --data {data}/Beauty.txt.gz --out {out}/recommendation --page {page} --seeds 3 "
        "--methods full,uniform,unigram,midx-beyond,two-level-sd",
        "sequential_recommendation --data {data}/Beauty.txt.gz --epochs 60 --patience 5 --seeds 3 "
        "--out {out}/recommendation-end --page {page} --section sequential-recommendation-end "
        "--methods full,midx-beyond,two-level-sd",
        "sequential_recommendation --data {data}/Beauty.txt.gz --costs --out {out}/recommendation --page {page} "
        "--methods full,fused,uniform,unigram,in-batch,sce,rece,sphere,lsh,random-features,midx-pq,midx-rq,midx-beyond,"
        "midx-systematic,learned,two-level-sd",
        "codewords --data {data}/Beauty.txt.gz --epochs 4 --out {out}/codewords --page {page} --methods full,rq-8,"
        "rq-16,rq-32,rq-64,rq-128,rq-3x16,rq-4x8,weighted-64,weighted-3x16,weighted-4x8,learned-64",
        "codewords --data {data}/Beauty.txt.gz --diagnose --out {out}/codewords --page {page}",
        "extreme_classification --classes 50000 --examples 300000 --epochs 3 --out {out}/classification --page {page} "
        "--methods full,uniform,unigram,midx-rq,midx-beyond,two-level-s",
        "extreme_classification --classes 50000 --examples 300000 --methods full --diagnose --out {out}/classification "
        "--page {page}",
        "extreme_classification --classes 50000 --examples 300000 --costs --out {out}/classification --page {page} "
        "--methods full,uniform,unigram,midx-rq,midx-beyond,two-level-s",
    ),
    "learned-similarity-results": (
        "learned_similarity --data {data}/Beauty.txt.gz --epochs 60 --patience 5 --seeds 3 --sampler uniform "
        "--draws 128 --rate 0.001 --item-rate 0.001 --out {out}/similarity-end --page {page} "
        "--section learned-similarity-end --methods sasrec-cosine,sasrec-cosine-equal,sasrec-mol",
        "learned_similarity --data {data}/Beauty.txt.gz --out {out}/similarity-12 --methods sasrec-cosine-equal,"
        "sasrec-mol,sasrec-mol-plain,sasrec-mol-tied,hstu-dot,hstu-mol,hstu-mol-constant",
        "learned_similarity --data {data}/Beauty.txt.gz --out {out}/similarity-12 --page {page} --seeds 3 "
        "--methods sasrec-dot,sasrec-cosine,sasrec-mol-constant",
        *(
            f"learned_similarity --data {{data}}/Beauty.txt.gz --epochs 6 --gate-rate {rate} --out {{out}}/gate-{rate} "
            "--methods sasrec-mol-tied --section learned-similarity"
            for rate in ("0", "0.00002", "0.002")
        ),
        "learned_similarity --data {data}/MovieLens-100K.tsv.gz --out {out}/movies --page {page} --seeds 3 "
        "--methods sasrec-dot@3,sasrec-cosine@3,sasrec-cosine-equal@3,sasrec-mol@3,sasrec-mol-users@3",
        "learned_similarity --data {data}/MovieLens-100K.tsv.gz --draws 64 --decay 8 --out {out}/movies-8 --methods "
        "sasrec-dot,sasrec-cosine,sasrec-dot-equal@3,sasrec-cosine-equal,sasrec-mol-tied@3,hstu-mol",
        "learned_similarity --data {data}/MovieLens-100K.tsv.gz --draws 64 --decay 8 --out {out}/movies-8 --seeds 3 "
        "--page {page} --section learned-similarity-ratings-8 --methods sasrec-dot@3,sasrec-cosine@3,"
        "sasrec-cosine-equal@3,sasrec-mol,sasrec-mol@3,hstu-dot@3,hstu-cosine@3,hstu-cosine-equal@3,hstu-mol@3",
        "learned_similarity --data {data}/MovieLens-100K.tsv.gz --draws 64 --decay 8 --item-rate 0.001 --seeds 3 "
        "--out {out}/movies-one-rate --methods sasrec-dot@3,sasrec-cosine@3,sasrec-mol@3",
        "retrieval_tradeoff --data {data}/Beauty.txt.gz --out {out}/similarity-end --page {page}",
        "retrieval_tradeoff --data {data}/MovieLens-100K.tsv.gz --method sasrec-mol@3 --out {out}/movies-8 "
        "--page {page} --section retrieval-tradeoff-ratings",
        "text_retrieval --data {data}/wikitext-2 --epochs 30 --patience 3 --seeds 3 --out {out}/texts --page {page}",
    ),
}
"""The commands of each page, in the order of its sections."""


def commands(page, data, out, folder):
    """The commands of a page, each a list of arguments for Python."""
    places = {"data": data, "out": out, "page": folder / f"{page}.md"}
    return [["-m", *shlex.split(f"experiments.{command.format(**places)}")] for command in PAGES[page]]


def main():
    """Run the commands of a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("--data", type=Path, default=Path("data"), help="directory of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="directory of checkpoints and results")
    parser.add_argument("--folder", type=Path, default=Path("docs"), help="directory of the page")
    parser.add_argument("--list", action="store_true", help="print the commands and run none")
    options = parser.parse_args()
    for command in commands(options.page, options.data, options.out, options.folder):
        print("python", shlex.join(command), flush=True)
        if not options.list:
            subprocess.run([sys.executable, *command], check=True)  # noqa: S603 -- the commands above


if __name__ == "__main__":
    main()
