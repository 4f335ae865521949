"""Real, cheap encoders on real text; skipped without BANYAN_HF_ENCODERS and the shared data."""

from __future__ import annotations

import gzip

import pytest
from sentence_transformers import SentenceTransformer

from relrep_hf import RelativeSpace
from relrep_hf.metrics import ranks


def test_param_and_wip_beat_the_classical_choice(real_encoders, data) -> None:
    names = ("glove-sif", "static-64d")
    missing = [name for name in names if not (real_encoders / name).is_dir()]
    if missing:
        pytest.skip(f"{missing} are not built")
    with gzip.open(data / "text" / "en.txt.gz", "rt", encoding="utf-8") as handle:
        texts = list(dict.fromkeys(line.strip() for _, line in zip(range(2500), handle, strict=False)))
    encoders = {name: SentenceTransformer(str(real_encoders / name), device="cpu") for name in names}
    held_out, figures = texts[2000:], {}
    for selector, similarity in (("param", "wip"), ("random", "cosine")):
        options = {"anchors": 100, "similarity": similarity, "selector": selector, "show_progress": False}
        space = RelativeSpace.fit(encoders, texts[:2000], **options)
        a, b = (space.attach(encoder).encode(held_out) for encoder in encoders.values())
        figures[selector] = (ranks(a, b) == 1).mean()
    assert figures["param"] > figures["random"] + 0.2, figures
