"""MTEB's own acceptance test, `mteb.mock_run`: all its offline tasks for text, on three kinds of our models.

What: runs every mock task that fits a text encoder (bitext, classification, clustering, pairs, reranking, retrieval,
STS, summaries, ...; nothing is downloaded) on the English Banyan in the box, on an encoder attached to a shared space,
and on a stitched pair (queries by one encoder, documents by another). One row per model; a failure is named and the
exit code is 1. The space is fitted on the first 2,000 lines of text/en.dev.txt.gz between the box and static-64d of
`BANYAN_HF_ENCODERS`.

    python benchmarks/mteb_acceptance.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import gzip
import logging
import sys
import time
import warnings
from itertools import islice

import mteb
from banyan_common import data_folder, encoder_folder, parser, print_table, save
from mteb.models import SentenceTransformerEncoderWrapper
from mteb.results import TaskResult
from sentence_transformers import SentenceTransformer

from banyan_hf import default_model
from relrep_hf import RelativeSpace, stitch


def main() -> None:
    args = parser(__doc__).parse_args()
    other_folder = encoder_folder("static-64d")
    if other_folder is None:
        sys.exit("The space needs a second encoder.")
    with gzip.open(data_folder() / "text" / "en.dev.txt.gz", "rt", encoding="utf-8") as file:
        texts = list(dict.fromkeys(line.strip() for line in islice(file, 2000)))
    banyan, other = (SentenceTransformer(str(path), device="cpu") for path in (default_model(), other_folder))
    space = RelativeSpace.fit({"banyan": banyan, "static-64d": other}, texts, anchors=100, show_progress=False)
    models = {
        "Banyan, the box": banyan,
        "attached: static-64d in the shared space": space.attach(other),
        "stitched: queries Banyan, documents static-64d": stitch(query=banyan, document=other, space=space),
    }

    warnings.simplefilter("ignore")  # MTEB's, about its own calls
    logging.getLogger("mteb").setLevel(logging.ERROR)
    rows, faults = [], []
    for name, model in models.items():
        began = time.monotonic()
        outcome = mteb.mock_run(SentenceTransformerEncoderWrapper(model))
        ran = {task: status for task, status in outcome.items() if status is not None}  # None: not a task for text
        failed = [task for task, status in ran.items() if not isinstance(status, TaskResult)]
        faults += [f"{name}: {task}: {ran[task].exception}" for task in failed]
        rows.append({"model": name, "tasks": len(ran), "passed": len(ran) - len(failed),
                     "seconds": time.monotonic() - began})  # fmt: skip
    print_table(rows)
    save(args.output, mteb=mteb.__version__, rows=rows, faults=faults)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
