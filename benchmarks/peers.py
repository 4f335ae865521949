"""Banyan beside word2vec and fastText trained on the same text: six English STS sets, one table.

What: gensim's word2vec and fastText (256 numbers) learn from the same 10 M words as Banyan, cut in two ways: into words
(the tokenizer's own normalisation, punctuation split off) and, with `--tokenizer DIR`, into that tokenizer's subwords.
Each is scored as the plain mean of its word vectors, as the SIF mean (weights a / (a + p(word)), a = 1e-3), and as SIF
with the first singular direction removed (Arora et al. 2017: found on the sentences of the set that is scored, a small
favour to the peer). A Banyan given by `--model DIR` is scored with its three poolings; `root` is the paper's model.
Two controls keep only the lengths that training gave to its token vectors: `its lengths` turns each in a random
direction, so that nothing but the overlap of tokens counts, weighted; `with word2vec's directions` turns each as
skip-gram did for the same subword (it knows better than Banyan which words resemble each other).
Scores are Spearman x 100 of cosines; `mean` is the plain mean of the six columns, `words` that of SimLex-999 and both
halves of WordSim, single words with the same pooling. The best figure of a column among the models scored here has a
star, whoever it belongs to.

Settings of the peers: 5 epochs, window 5, 5 negatives, min_count 5, subsampling 1e-3, learning rate 0.025 to 0.0001,
seed 0, gensim's defaults otherwise; fastText with n-grams of 3 to 6 characters in 500,000 buckets. `sg` is skip-gram,
`cbow` the continuous bag of words.

Time: each peer is trained once and kept in `--cache`, for words and again for subwords: 100 to 670 CPU seconds each,
fastText most; `--peers` trains some of them only. Scoring what is in the cache takes a minute. Writing the cut text
takes 2 minutes, once.

    python benchmarks/peers.py --tokenizer DIR --model DIR --output results/peers.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import gzip
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from banyan_common import ENGLISH_SETS, PAPER, data_folder, parser, print_table, save, with_mean
from banyan_runs import random_directions, scores_by_pooling
from gensim.models import FastText, Word2Vec
from gensim.models.keyedvectors import KeyedVectors
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer
from torch import Tensor
from transformers import AutoTokenizer

from banyan_hf.evaluation.formats import read_word_pairs
from banyan_hf.evaluation.sts import SentencePairs, read_pairs, spearman
from banyan_hf.evaluation.suites import LEXICAL
from banyan_hf.tokenizer import SPACE, train_tokenizer

Cut = Callable[[list[str]], list[list[str]]]  # texts -> their words or subwords

SETTINGS = {
    "vector_size": 256, "epochs": 5, "window": 5, "negative": 5, "min_count": 5, "sample": 1e-3, "seed": 0,
}  # fmt: skip
PEERS: dict[str, Callable[..., Any]] = {
    "word2vec-sg": partial(Word2Vec, sg=1),
    "word2vec-cbow": partial(Word2Vec, sg=0),
    "fasttext-sg": partial(FastText, sg=1, bucket=500_000),
    "fasttext-cbow": partial(FastText, sg=0, bucket=500_000),
}
SIF_A = 1e-3


def words_cutter() -> Cut:
    """Words as Banyan's tokenizer sees them before it cuts them: its normaliser and its pre-tokenizer."""
    backend = train_tokenizer(["any text gives the same rules"], 50, show_progress=False).backend_tokenizer
    normalize, split = backend.normalizer.normalize_str, backend.pre_tokenizer.pre_tokenize_str

    def cut(texts: list[str]) -> list[list[str]]:
        return [[word.removeprefix(SPACE) for word, _ in split(normalize(text))] for text in texts]

    return cut


def tokens_cutter(folder: str) -> Cut:
    """Subwords of a saved tokenizer."""
    backend = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    return lambda texts: [encoding.tokens for encoding in backend.encode_batch(texts)]


def write_corpus(text: Path, cut: Cut, target: Path) -> Path:
    """One sentence a line, units separated by blanks, as gensim reads it; kept for the next run."""
    if not target.exists():
        temporary = target.with_suffix(".tmp")
        with gzip.open(text, "rt", encoding="utf-8") as source, temporary.open("w", encoding="utf-8") as file:
            while lines := [line.rstrip("\n") for line in islice(source, 10_000)]:
                file.writelines(" ".join(units) + "\n" for units in cut(lines))
        os.replace(temporary, target)
    return target


def train_peer(name: str, corpus: Path, folder: Path, workers: int, **settings: Any) -> None:
    """Train one peer, unless its folder is there already; seconds are those of the training alone.

    `settings` replace those of SETTINGS.
    """
    if (folder / "cost.json").exists():
        return
    print(f"Training {name} on {corpus.name} ...", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    wall, cpu = time.perf_counter(), time.process_time()
    model = PEERS[name](corpus_file=str(corpus), workers=workers, **{**SETTINGS, **settings})
    cost = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "workers": workers}
    model.wv.save(str(folder / "vectors.kv"))
    (folder / "cost.json").write_text(json.dumps(cost), encoding="utf-8")


def sentence_vectors(vectors: KeyedVectors, sentences: list[list[str]], pooling: str) -> np.ndarray:
    """(n, D); words without a vector are left out, a sentence without any is 0."""
    vectorizer = CountVectorizer(analyzer=lambda units: units)
    counts = vectorizer.fit_transform(sentences).astype(np.float32)  # (n, words)
    words = vectorizer.get_feature_names_out()
    known = np.array([word in vectors for word in words])
    table = np.stack([vectors[word] if word in vectors else np.zeros(vectors.vector_size) for word in words])
    weights = counts.multiply(known * (1.0 if pooling == "mean" else sif_weights(vectors, words))).tocsr()
    out = (weights @ table) / np.maximum(weights.sum(axis=1), 1e-9)
    out = np.asarray(out, np.float32)
    if pooling == "SIF - 1st component":
        first = TruncatedSVD(n_components=1, random_state=0).fit(out).components_.astype(np.float32)  # (1, D)
        out -= out @ first.T @ first
    return out


def sif_weights(vectors: KeyedVectors, words: Sequence[str]) -> np.ndarray:
    """a / (a + p(word)), p from the training text; 1 for a word that fastText makes from its n-grams."""
    total = sum(vectors.get_vecattr(word, "count") for word in vectors.index_to_key)
    seen = [vectors.get_vecattr(word, "count") if word in vectors.key_to_index else 0 for word in words]
    return SIF_A / (SIF_A + np.array(seen) / total)


def columns(scores: Sequence[float]) -> dict[str, float]:
    """The English sets and their mean; the mean of the sets of words, which come last."""
    sentences, words = scores[: len(ENGLISH_SETS)], scores[len(ENGLISH_SETS) :]
    return {**with_mean(sentences), "words": sum(words) / len(words)}


def peer_rows(
    name: str, unit: str, cut: dict[str, list[str]], folder: Path, sets: list[SentencePairs]
) -> Iterator[dict[str, Any]]:
    """One row for each pooling; `cut` has the words of every text of the sets."""
    vectors = KeyedVectors.load(str(folder / "vectors.kv"))
    cost = json.loads((folder / "cost.json").read_text(encoding="utf-8"))
    cost_columns = {"wall s": round(cost["wall_s"]), "CPU s": round(cost["cpu_s"])}

    def score(pairs: SentencePairs, pooling: str) -> float:
        texts = pairs.first + pairs.second
        embedded = torch.from_numpy(sentence_vectors(vectors, [cut[text] for text in texts], pooling))
        table = dict(zip(texts, embedded, strict=True))
        return spearman(lambda wanted: torch.stack([table[text] for text in wanted]), pairs)

    for pooling in ("mean", "SIF mean", "SIF - 1st component"):
        scores = [score(pairs, pooling) for pairs in sets]
        yield {"model": name, "units": unit, "pooling": pooling, **columns(scores), **cost_columns}


def directions_of(vectors: KeyedVectors, tokens: list[str]) -> Callable[[Tensor], Tensor]:
    """Control for `scores_by_pooling`: the token table's lengths, these directions; 0 for a token without a vector."""
    found = torch.stack(
        [torch.tensor(vectors[t]) if t in vectors else torch.zeros(vectors.vector_size) for t in tokens]
    )

    def control(table: Tensor) -> Tensor:
        wide = F.pad(found, (0, table.shape[1] - found.shape[1]))  # (V, D): zeros, or less of it, where D is another
        return F.normalize(wide, dim=1) * table.norm(dim=1, keepdim=True)

    return control


def banyan_rows(
    folder: str, sets: list[SentencePairs], *, label: str = "Banyan", control: Callable[[Tensor], Tensor] | None = None
) -> Iterator[dict[str, Any]]:
    for pooling, scores in scores_by_pooling(folder, sets, control=control).items():
        name = f"{label} ({Path(folder).name})"
        yield {
            "model": name,
            "units": "subwords",
            "pooling": pooling,
            **columns(scores),
            "wall s": None,
            "CPU s": None,
        }


def paper_rows() -> Iterator[dict[str, Any]]:
    for name, scores in PAPER.items():
        yield {
            "model": f"paper: {name}",
            "units": "",
            "pooling": "",
            **with_mean(scores),
            "words": None,
            "wall s": None,
            "CPU s": None,
        }


def starred(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Scores as text; the best of each column (the paper's rows left out) with a star."""
    scored = (*ENGLISH_SETS, "mean", "words")
    best = {c: max((row[c] for row in rows if not row["model"].startswith("paper")), default=None) for c in scored}

    def text(row: dict[str, Any], column: str) -> str | None:
        if row[column] is None:
            return None
        is_best = row[column] == best[column] and not row["model"].startswith("paper")
        return f"{row[column]:6.2f}{'*' if is_best else ' '}"

    return [{**row, **{column: text(row, column) for column in scored}} for row in rows]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tokenizer", help="folder of a tokenizer: peers are also trained on its subwords")
    arguments.add_argument("--model", action="append", default=[], help="folder of a trained Banyan; may be repeated")
    arguments.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS), help="default: all")
    arguments.add_argument("--cache", type=Path, default=Path("results/peers"), help="where trained peers are kept")
    arguments.add_argument("--workers", type=int, default=2, help="training threads")
    args = arguments.parse_args()

    data = data_folder()
    english = data / "eval" / "english"
    sets = [read_pairs(english / f"{name}_test.csv") for name in ENGLISH_SETS]
    sets += [read_word_pairs(english / file) for file in LEXICAL.values()]
    args.cache.mkdir(parents=True, exist_ok=True)
    cutters = {"words": words_cutter()} | ({"subwords": tokens_cutter(args.tokenizer)} if args.tokenizer else {})
    rows: list[dict[str, Any]] = []
    texts = [text for pairs in sets for text in pairs.first + pairs.second]
    for unit, cut in cutters.items():
        known = dict(zip(texts, cut(texts), strict=True))
        corpus = write_corpus(data / "text" / "en.txt.gz", cut, args.cache / f"{unit}.txt")
        for name in args.peers:
            trained = args.cache / f"{name}-{unit}"
            train_peer(name, corpus, trained, args.workers)
            rows += peer_rows(name, unit, known, trained, sets)
    for folder in args.model:
        rows += banyan_rows(folder, sets)
        rows += banyan_rows(folder, sets, label="its lengths", control=random_directions)
        vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
        skip_gram = "word2vec-sg" in args.peers and args.tokenizer
        if skip_gram and AutoTokenizer.from_pretrained(args.tokenizer).get_vocab() == vocabulary:
            vectors = KeyedVectors.load(str(args.cache / "word2vec-sg-subwords" / "vectors.kv"))
            control = directions_of(vectors, sorted(vocabulary, key=vocabulary.__getitem__))
            rows += banyan_rows(folder, sets, label="with word2vec's directions", control=control)
    rows += paper_rows()
    print_table(starred(rows))
    save(args.output, settings={**SETTINGS, "sif_a": SIF_A}, rows=rows)


if __name__ == "__main__":
    main()
