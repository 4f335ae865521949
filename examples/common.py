"""What the examples share: encoders and data at hand, embeddings kept on disk with the time they took, charts.

Real runs need two folders, found through the environment:

- `BANYAN_HF_DATA` (default `../shared/data`): corpora, as its README describes;
- `BANYAN_HF_ENCODERS`: folders of encoders by name; an encoder that is not there is taken from the Hub.

`--small` needs neither: its texts are the docstrings of Python's own library, its encoders the English Banyan in the
box and a table of word vectors made in a second (`word_vectors`).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads sleep instead of taking a core away
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import ast
import gzip
import json
import random
import re
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from sentence_transformers import SentenceTransformer
from transformers import logging

import banyan_hf
from relrep_hf.embedding import EmbeddingCache, encoder_id, texts_hash

logging.disable_progress_bar()  # of loading weights
ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("BANYAN_HF_DATA", ROOT.parent / "shared" / "data"))
ENCODERS = Path(os.environ.get("BANYAN_HF_ENCODERS", ROOT / "encoders"))
ON_THE_HUB = {
    "minilm-l6": "sentence-transformers/all-MiniLM-L6-v2",
    "minilm-l3": "sentence-transformers/paraphrase-MiniLM-L3-v2",
    "mpnet": "sentence-transformers/all-mpnet-base-v2",
    "e5-multilingual": "intfloat/multilingual-e5-small",
}
console = Console()


def encoder(name: str) -> SentenceTransformer:
    """An encoder by its short name: `banyan` from the box, others from `BANYAN_HF_ENCODERS` or the Hub."""
    if name == "banyan":
        return SentenceTransformer(banyan_hf.default_model(), device="cpu")
    folder = ENCODERS / name
    source = str(folder) if folder.is_dir() else ON_THE_HUB.get(name)
    if source is None:
        raise SystemExit(f"{folder} is not there, and {name} is on no Hub: name its parent in BANYAN_HF_ENCODERS.")
    # Only USE brings code of its own, a file in its folder.
    return SentenceTransformer(source, device="cpu", trust_remote_code=name == "use-multilingual")


def data(path: str) -> Path:
    """A file under `BANYAN_HF_DATA`, or one line that says what is missing."""
    if not (DATA / path).exists():
        raise SystemExit(f"{DATA / path} is not there: set BANYAN_HF_DATA, or try --small, which needs no data.")
    return DATA / path


def lines(path: str, count: int) -> list[str]:
    """The first different lines of a .gz file under `BANYAN_HF_DATA`."""
    found: dict[str, None] = {}
    with gzip.open(data(path), "rt", encoding="utf-8") as handle:
        for line in handle:
            found[line.strip()] = None
            if len(found) == count:
                break
    return list(found)


@dataclass(frozen=True)
class Retrieval:
    """Documents, queries, which documents answer which query (row numbers), and other texts of the same kind."""

    documents: list[str]
    queries: list[str]
    relevant: list[set[int]]
    others: list[str]


def quora(*, documents: int = 5_000, queries: int = 1_000, others: int = 4_000, seed: int = 0) -> Retrieval:
    """Questions of `quora_small`: an index (up to 10,000), queries with duplicates in it, and other questions."""
    folder = "retrieval/quora_small"
    rows = [json.loads(line) for line in data(f"{folder}/corpus.jsonl").open(encoding="utf-8")]
    texts = {row["_id"]: row["text"] for row in rows}
    asked = {row["_id"]: row["text"] for row in map(json.loads, data(f"{folder}/queries.jsonl").open(encoding="utf-8"))}
    answers: dict[str, set[str]] = {}
    for line in data(f"{folder}/qrels/test.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query, document, _ = line.split("\t")
        answers.setdefault(query, set()).add(document)
    draw = random.Random(seed)
    chosen = draw.sample(sorted(answers), queries)
    needed = dict.fromkeys(document for query in chosen for document in sorted(answers[query]))
    rest = draw.sample(sorted(set(texts) - set(needed)), len(texts) - len(needed))
    ids = [*needed, *rest[: documents - len(needed)]]
    place = {document: row for row, document in enumerate(ids)}
    inside = {texts[document] for document in ids}
    outside = [texts[document] for document in rest[10_000 - len(needed) :]]  # the same for every size of the index
    return Retrieval(
        documents=[texts[document] for document in ids],
        queries=[asked[query] for query in chosen],
        relevant=[{place[document] for document in answers[query]} for query in chosen],
        others=[text for text in dict.fromkeys(outside) if text not in inside][:others],
    )


def docstrings(*, documents: int = 800, queries: int = 200, others: int = 600, seed: int = 0) -> Retrieval:
    """Python's own library as a collection: first sentences of docstrings; queries are the names of functions."""
    found: dict[str, str] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for name, text in _docstrings(path):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name).strip().lower()
            if 4 <= len(text.split()) <= 25 and len(words.split()) > 1 and ">>>" not in text:
                found.setdefault(text, words)
    texts = list(found)
    random.Random(seed).shuffle(texts)
    index = texts[:documents]
    return Retrieval(
        documents=index,
        queries=[found[text] for text in index[:queries]],
        relevant=[{row} for row in range(queries)],
        others=texts[documents : documents + others],
    )


def docstrings_of(file: str) -> list[str]:
    """The different first sentences of a file of Python's library."""
    found = _docstrings(Path(sysconfig.get_path("stdlib")) / file)
    return list(dict.fromkeys(text for _, text in found if 3 <= len(text.split()) <= 25 and ">>>" not in text))


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Name and first sentence of every documented function and class in a file; nothing is imported."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
            yield node.name, " ".join(re.split(r"(?<=[.!?])\s|\n\n", text)[0].split())


def word_vectors(texts: Sequence[str], *, dims: int = 64, seed: int = 0) -> SentenceTransformer:
    """An encoder made in a second: word vectors by latent semantic analysis of texts, averaged."""
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    vectorizer = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True)
    svd = TruncatedSVD(dims, random_state=seed).fit(vectorizer.fit_transform(texts))
    words = vectorizer.get_feature_names_out()
    vocabulary = {word: row for row, word in enumerate(["[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    known = (svd.components_ * vectorizer.idf_).T  # (words, dims)
    table = np.vstack([known.mean(axis=0), known])
    module = StaticEmbedding(tokenizer, embedding_weights=table.astype(np.float32))
    return SentenceTransformer(modules=[module], device="cpu")


class Embeddings:
    """Embeddings kept in a folder with the CPU seconds they took: a second run reads them and still knows the price."""

    def __init__(self, folder: Path) -> None:
        self.cache = EmbeddingCache(folder)
        self.folder = folder

    def __call__(self, model: SentenceTransformer, name: str, texts: Sequence[str]) -> tuple[np.ndarray, float]:
        """Vectors (n, d) and CPU seconds, of all threads, that encoding them took when it was done."""
        record = self.folder / f"{name}-{texts_hash(texts)[:16]}.seconds"
        identity = encoder_id(model)
        begun = time.process_time()
        vectors = self.cache.embed(model, texts, name=name, identity=identity, show_progress=console.is_terminal)
        if not record.exists():
            record.write_text(f"{time.process_time() - begun:.3f}")
        return vectors, float(record.read_text())


def ndcg(found: np.ndarray, relevant: Sequence[set[int]]) -> float:
    """Mean nDCG@k of ranked row numbers (Q, k) against the rows that answer each query."""
    discount = 1 / np.log2(np.arange(2, found.shape[1] + 2))
    gains = [discount[np.isin(row, list(wanted))].sum() for row, wanted in zip(found, relevant, strict=True)]
    best = [discount[: len(wanted)].sum() for wanted in relevant]
    return float(np.mean(np.divide(gains, best)))
