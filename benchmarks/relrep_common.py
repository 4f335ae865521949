"""What the benchmarks of relrep_hf share: real encoders, shared data, one cache of embeddings, bars."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gzip
import json
import random
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from relrep_hf import EmbeddingCache, RelativeSpace
from relrep_hf.embedding import encoder_id
from relrep_hf.metrics import ranks
from relrep_hf.report_tasks import Task
from relrep_hf.similarity import AffineMap

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("BANYAN_HF_DATA", ROOT.parent / "shared" / "data"))
ENCODERS = Path(os.environ.get("BANYAN_HF_ENCODERS", "encoders"))
NAMES = {
    "MiniLM-L6": "minilm-l6", "MiniLM-L3": "minilm-l3", "USE": "use-multilingual",
    "GloVe-SIF": "glove-sif", "mpnet": "mpnet", "e5": "e5-multilingual",
}  # fmt: skip


def lines(path: str, count: int) -> list[str]:
    """First lines of a gzipped text file."""
    with gzip.open(DATA / path, "rt", encoding="utf-8") as handle:
        return [line.rstrip("\n") for _, line in zip(range(count), handle, strict=False)]


def rows(path: str) -> list[list[str]]:
    """All rows of a tab-separated file."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(DATA / path, "rt", encoding="utf-8") as handle:
        return [line.rstrip("\n").split("\t") for line in handle]


@cache
def tasks(*, small: bool = False) -> dict[str, Task]:
    """SST-2, TREC and AG News: up to 4,000 training texts, the official test set (SST-2: dev) in full."""
    limit, most = (300, 200) if small else (4000, None)
    found = {}
    train = rows("eval/english/sst_train.tsv.gz")[1:]
    random.Random(0).shuffle(train)
    test = rows("eval/english/sst_dev.tsv")[1:]
    found["SST-2"] = Task([r[0] for r in train[:limit]], [r[1] for r in train[:limit]], *zip(*test, strict=True))
    for title, folder in (("TREC", "trec"), ("AG News", "ag_news")):
        train, test = (rows(f"classification/{folder}/{part}.tsv") for part in ("train", "test"))
        random.Random(0).shuffle(train)
        train = train[:limit]
        found[title] = Task([r[1] for r in train], [r[0] for r in train], [r[1] for r in test], [r[0] for r in test])
    return {title: Task(*task[:2], task.test[:most], task.test_labels[:most]) for title, task in found.items()}


@dataclass
class Bench:
    """Loaded encoders, one cache, every space that was fitted, every bar that was met or not.

    Args:
        folder: of the cache of embeddings.
        small: an eighth of the texts or less, to see that everything runs; its figures mean nothing.
        figures: of the part that runs, for the JSON file.
        bars: of the part that runs: [what, value, bar, passed].
    """

    folder: str
    small: bool = False
    figures: dict[str, Any] = field(default_factory=dict)
    bars: list[list[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not (DATA / "text").is_dir() or not (ENCODERS / "minilm-l6").is_dir():
            sys.exit(f"skipped: BANYAN_HF_DATA ({DATA}) or BANYAN_HF_ENCODERS ({ENCODERS}) is not there")
        self.store = EmbeddingCache(self.folder)
        self.models: dict[str, SentenceTransformer] = {}
        self.ids: dict[str, str] = {}
        self.spaces: dict[str, RelativeSpace] = {}
        self.vectors: dict[tuple[str, int], np.ndarray] = {}
        self.maps: dict[tuple[str, str], AffineMap] = {}
        # As handed in: no line of the two files is repeated.
        self.fit_texts = list(dict.fromkeys(lines("text/en.txt.gz", 1000 if self.small else 8000)))
        self.held_out = lines("text/en.dev.txt.gz", 200 if self.small else 2000)
        self.tasks = tasks(small=self.small)

    def model(self, name: str) -> SentenceTransformer:
        """Load an encoder once."""
        if name not in self.models:
            # USE is the only one with code of its own, a file in its folder.
            path = str(ENCODERS / NAMES[name])
            self.models[name] = SentenceTransformer(path, device="cpu", trust_remote_code=name == "USE")
            self.ids[name] = encoder_id(self.models[name])
        return self.models[name]

    def embed(self, name: str, texts: list[str]) -> np.ndarray:
        """Absolute vectors, from memory or the cache where they are."""
        model, key = self.model(name), (name, hash(tuple(texts)))
        if key not in self.vectors:
            self.vectors[key] = self._embed(model, name, texts)
        return self.vectors[key]

    def _embed(self, model: SentenceTransformer, name: str, texts: list[str]) -> np.ndarray:
        return self.store.embed(model, texts, name=name, identity=self.ids[name], show_progress=sys.stderr.isatty())

    def space(self, names: tuple[str, ...], *, more: tuple[str, ...] = (), **options: Any) -> RelativeSpace:
        """Fit a space on the 8,000 texts (and more), once for the same arguments."""
        key = repr((names, hash(more), sorted(options.items(), key=str)))
        if key not in self.spaces:
            texts = list(dict.fromkeys([*self.fit_texts, *more]))
            ready = {name: self.embed(name, texts) for name in names}
            self.spaces[key] = RelativeSpace.fit_embeddings(ready, texts, **options)
        return self.spaces[key]

    def map(self, space: RelativeSpace, name: str) -> AffineMap:
        """Map of an encoder into a space, made once."""
        if (space.id, name) not in self.maps:
            self.maps[space.id, name] = space.map_for(self.embed(name, space.support), name=name)
        return self.maps[space.id, name]

    def relative(self, space: RelativeSpace, name: str, texts: list[str]) -> np.ndarray:
        """Relative vectors."""
        return self.map(space, name)(self.embed(name, texts))

    def check(self, what: str, value: float, bar: float, *, least: bool = True, form: str = "{:.2f}") -> None:
        """Compare a figure with its bar, say so, and remember it for the summary."""
        passed = value >= bar - 1e-9 if least else value <= bar + 1e-9
        shown, asked = form.format(value), f"{'>=' if least else '<='} {bar:g}"
        self.bars.append([what, shown, asked, passed])
        print(f"  {'pass ' if passed else 'BELOW'} {what}: {shown} (bar {asked})", flush=True)


def read_results(path: Path | None) -> dict[str, Any]:
    """Parts that were measured before; a part that is run again replaces its old figures."""
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}


def write_results(results: dict[str, Any], path: Path) -> None:
    """Write all parts as JSON, and every bar as a Markdown table beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table = ["| part, date | what | measured | bar | |", "|---|---|---|---|---|"]
    for name, part in results.items():
        for what, value, bar, passed in part["bars"]:
            mark = "pass" if passed else "**below**"
            table.append(f"| {name}, {part['date']} | {what} | {value} | {bar} | {mark} |")
    text = f"`python benchmarks/{path.stem}.py --output {path.name}` writes this file.\n\n" + "\n".join(table) + "\n"
    path.with_suffix(".md").write_text(text, encoding="utf-8")


def found_both_ways(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """R@1 in per cent, both directions."""
    return 100 * float((ranks(a, b) == 1).mean()), 100 * float((ranks(b, a) == 1).mean())
