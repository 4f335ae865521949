"""Every acceptance figure of relrep_hf in one run: pairs, heads, one-encoder loss, late joining, SciFact, time.

    python benchmarks/relrep_pairs.py [--parts pairs,late,tasks,alone,scifact,time] [--output results/relrep_pairs.json]

Needs BANYAN_HF_DATA (default ../shared/data) and BANYAN_HF_ENCODERS (folder of built encoders); skips without them.
Embeddings are cached under --cache, so a second run takes minutes. Held-out texts play no part in any choice.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import resource
import sys
import time
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from sklearn.metrics import ndcg_score

from relrep_hf import EmbeddingCache, ParamSettings, RelativeSpace, retention_report, stitch
from relrep_hf.embedding import encoder_id
from relrep_hf.heads import fit_logistic
from relrep_hf.metrics import ranks
from relrep_hf.report import OURS, Task
from relrep_hf.similarity import unit

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("BANYAN_HF_DATA", ROOT.parent / "shared" / "data"))
ENCODERS = Path(os.environ.get("BANYAN_HF_ENCODERS", "encoders"))
NAMES = {
    "MiniLM-L6": "minilm-l6", "MiniLM-L3": "minilm-l3", "USE": "use-multilingual",
    "GloVe-SIF": "glove-sif", "mpnet": "mpnet", "e5": "e5-multilingual",
}  # fmt: skip
PAIRS = [("MiniLM-L6", other) for other in ("MiniLM-L3", "USE", "GloVe-SIF", "mpnet", "e5")]
BARS = {"MiniLM-L3": 99.9, "USE": 99.8, "GloVe-SIF": 91.0}
TASK_NAMES = ("MiniLM-L6", "MiniLM-L3", "USE")


def lines(path: str, count: int) -> list[str]:
    with gzip.open(DATA / path, "rt", encoding="utf-8") as handle:
        return [line.rstrip("\n") for _, line in zip(range(count), handle, strict=False)]


def rows(path: str) -> list[list[str]]:
    opener = gzip.open if path.endswith(".gz") else open
    with opener(DATA / path, "rt", encoding="utf-8") as handle:
        return [line.rstrip("\n").split("\t") for line in handle]


class Bench:
    """Loaded encoders, their ids and one cache."""

    def __init__(self, cache: str) -> None:
        self.store, self.models, self.ids = EmbeddingCache(cache), {}, {}
        self.fit_texts, self.dev = lines("text/en.txt.gz", 8000), lines("text/en.dev.txt.gz", 2000)
        self.results: dict = {}

    def model(self, name: str) -> SentenceTransformer:
        """Load an encoder once."""
        if name not in self.models:
            path = ENCODERS / NAMES[name]
            # USE is the only one with code of its own, a file in its folder.
            self.models[name] = SentenceTransformer(str(path), device="cpu", trust_remote_code=name == "USE")
            self.ids[name] = encoder_id(self.models[name])
        return self.models[name]

    def embed(self, name: str, texts: list[str]) -> np.ndarray:
        """Absolute vectors, from the cache where they are."""
        model = self.model(name)
        return self.store.embed(model, texts, name=name, identity=self.ids[name], show_progress=sys.stderr.isatty())

    def space(self, names: tuple[str, ...], **options) -> RelativeSpace:
        """Fit a space on the 8,000 texts."""
        unique = list(dict.fromkeys(self.fit_texts))
        return RelativeSpace.fit_embeddings({name: self.embed(name, unique) for name in names}, unique, **options)

    def map(self, space: RelativeSpace, name: str):
        """Map of an encoder into a space."""
        return space.map_for(self.embed(name, space.support), name=name)


def both_ways(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    return 100 * float((ranks(a, b) == 1).mean()), 100 * float((ranks(b, a) == 1).mean())


def mark(passed: bool) -> str:
    return "pass" if passed else "BELOW"


def part_pairs(bench: Bench) -> None:
    print("\n## R@1 of 2,000 held-out texts, both directions, m = 300, 8,000 texts to fit")
    for pair in PAIRS:
        space = bench.space(pair)
        report = retention_report(
            space, {name: bench.model(name) for name in pair}, bench.dev,
            fit_texts=list(dict.fromkeys(bench.fit_texts)), cache=bench.store.folder,
        )  # fmt: skip
        table = {
            method: [100 * record["methods"][method]["r@1"]["value"] for record in report["pairs"]]
            for method in report["pairs"][0]["methods"]
        }
        closed = {method: values for method, values in table.items() if method in ("procrustes", "ridge", "cca")}
        gap = min(ours - max(values[way] for values in closed.values()) for way, ours in enumerate(table[OURS]))
        line = f"{pair[0]} / {pair[1]} ({space.settings['steps']} steps): "
        line += "; ".join(f"{method} {a:.2f} {b:.2f}" for method, (a, b) in table.items())
        line += f" | best closed form {gap:+.2f} (bar -0.20: {mark(gap >= -0.2 - 1e-9)})"
        if pair[1] in BARS:
            line += f", bar {BARS[pair[1]]}: {mark(min(table[OURS]) >= BARS[pair[1]] - 1e-9)}"
        print(line, flush=True)
        bench.results.setdefault("pairs", {})["/".join(pair)] = report


def part_late(bench: Bench) -> None:
    print("\n## A space of MiniLM-L6 + USE, mpnet attached later, against a space of all three (R@1 MiniLM-L6 / mpnet)")
    figures = []
    for names in (("MiniLM-L6", "USE"), ("MiniLM-L6", "USE", "mpnet")):
        space = bench.space(names)
        vectors = [bench.map(space, name)(bench.embed(name, bench.dev)) for name in ("MiniLM-L6", "mpnet")]
        figures.append(both_ways(*vectors))
        print(" + ".join(names), "{:.2f} {:.2f}".format(*figures[-1]), flush=True)
    loss = max(full - late for late, full in zip(*figures, strict=True))
    print(f"loss {loss:.2f} points (bar 1.0: {mark(loss <= 1)})")
    bench.results["late"] = figures


def tasks(limit: int = 4000) -> dict[str, Task]:
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
    return found


def part_tasks(bench: Bench) -> None:
    print("\n## Heads: L2 logistic regression on the source (C by cross-validation there), run on the target; kept %")
    space = bench.space(TASK_NAMES)
    rival = bench.space(TASK_NAMES, selector="random", similarity="cosine")
    pairwise = {pair: bench.space(pair) for pair in combinations(TASK_NAMES, 2)}
    for title, task in tasks().items():
        truth = np.asarray(task.test_labels)

        def features(which: RelativeSpace, name: str, task: Task = task) -> list[np.ndarray]:
            affine = bench.map(which, name)
            return [unit(affine(bench.embed(name, list(part)))) for part in (task.train, task.test)]

        def kept(left: list, right: list, task: Task = task, truth: np.ndarray = truth) -> list[float]:
            heads = [fit_logistic(side[0], task.train_labels) for side in (left, right)]
            table = [[100 * float((head.predict(x[1]) == truth).mean()) for x in (left, right)] for head in heads]
            return [table[0][0], table[1][1], table[0][1], table[1][0]]  # own, own, stitched, stitched

        for label, choose in (
            ("PARAM + WIP, one space of three", lambda pair: space),
            ("PARAM + WIP, a space a pair", lambda pair: pairwise[pair]),
            ("random + cosine", lambda pair: rival),
        ):
            shares, parts = [], []
            for pair in combinations(TASK_NAMES, 2):
                first, second, there, back = kept(*(features(choose(pair), name) for name in pair))
                shares += [100 * there / second, 100 * back / first]
                parts.append(f"{pair[0]} {first:.1f} {pair[1]} {second:.1f} -> {there:.1f} <- {back:.1f}")
            bar = f" (bar 97, goal 99: {mark(np.mean(shares) >= 97)})" if "WIP" in label else ""
            print(f"{title}, {label}: kept {np.mean(shares):.2f} %{bar} | " + "; ".join(parts), flush=True)
            bench.results.setdefault("tasks", {}).setdefault(title, {})[label] = shares


def part_domain(bench: Bench) -> None:
    print(
        "\n## TREC is questions, the 8,000 texts are statements: kept % when the support has unlabelled questions too"
    )
    task = tasks()["TREC"]
    truth = np.asarray(task.test_labels)
    for label, texts in (
        ("8,000 statements", bench.fit_texts),
        ("+ training questions", [*bench.fit_texts, *task.train]),
    ):
        unique = [text for text in dict.fromkeys(texts) if text not in set(task.test)]
        ready = {name: bench.embed(name, unique) for name in TASK_NAMES}
        space = RelativeSpace.fit_embeddings(ready, unique)
        parts = {
            name: [unit(bench.map(space, name)(bench.embed(name, list(part)))) for part in (task.train, task.test)]
            for name in TASK_NAMES
        }
        heads = {name: fit_logistic(train, task.train_labels) for name, (train, _) in parts.items()}
        own = {name: (heads[name].predict(test) == truth).mean() for name, (_, test) in parts.items()}
        kept = [100 * (heads[a].predict(parts[b][1]) == truth).mean() / own[b] for a, b in permutations(TASK_NAMES, 2)]
        accuracies = ", ".join(f"{name} {100 * value:.1f}" for name, value in own.items())
        print(
            f"{label}: kept {np.mean(kept):.2f} % (six pairs {np.round(kept, 1).tolist()}), own {accuracies}",
            flush=True,
        )


def part_alone(bench: Bench) -> None:
    print("\n## One encoder alone: accuracy on relative against absolute features, the same head and rows")
    for name in TASK_NAMES:
        spaces = {"its own space": bench.space((name,)), "the space of three": bench.space(TASK_NAMES)}
        for title, task in tasks().items():
            truth = np.asarray(task.test_labels)
            parts = [bench.embed(name, list(part)) for part in (task.train, task.test)]
            # Absolute features are centred by unit() in neither case: both are rows of length 1.
            accuracy = {"absolute": [unit(part) for part in parts]}
            accuracy |= {
                label: [unit(bench.map(space, name)(part)) for part in parts] for label, space in spaces.items()
            }
            figures = {
                label: 100 * float((fit_logistic(x, task.train_labels).predict(y) == truth).mean())
                for label, (x, y) in accuracy.items()
            }
            loss = figures["absolute"] - figures["its own space"]
            line = ", ".join(f"{label} {value:.1f}" for label, value in figures.items())
            print(f"{name}, {title}: {line} | loss {loss:+.1f} (bar 1.0: {mark(loss <= 1)})", flush=True)
            bench.results.setdefault("alone", {})[f"{name}/{title}"] = figures


def part_scifact(bench: Bench, documents: int) -> None:
    folder = DATA / "retrieval" / "scifact"
    with gzip.open(folder / "corpus.jsonl.gz", "rt", encoding="utf-8") as handle:
        corpus = {d["_id"]: f"{d['title']} {d['text']}".strip() for d in map(json.loads, handle)}
    with open(folder / "qrels" / "test.tsv", encoding="utf-8") as handle:
        judged = [(r["query-id"], r["corpus-id"]) for r in csv.DictReader(handle, delimiter="\t") if int(r["score"])]
    with open(folder / "queries.jsonl", encoding="utf-8") as handle:
        queries = {q["_id"]: q["text"] for q in map(json.loads, handle)}
    keep = dict.fromkeys(document for _, document in judged)
    others = [key for key in corpus if key not in keep]
    random.Random(0).shuffle(others)
    keep = list(keep) + others[: max(0, documents - len(keep))]
    asked = list(dict.fromkeys(query for query, _ in judged))
    print(f"\n## SciFact: {len(asked)} queries, {len(keep)} of {len(corpus)} documents cut to 128 tokens, nDCG@10")
    relevant = np.zeros((len(asked), len(keep)))
    position = {key: n for n, key in enumerate(keep)}
    for query, document in judged:
        relevant[asked.index(query), position[document]] = 1
    models = {}
    for name in ("MiniLM-L3", "mpnet"):
        models[name] = SentenceTransformer(str(ENCODERS / NAMES[name]), device="cpu")
        models[name].max_seq_length = 128
    texts = [queries[key] for key in asked], [corpus[key] for key in keep]
    space = bench.space(("MiniLM-L3", "mpnet"))
    absolute = {name: [bench.store.embed(model, part) for part in texts] for name, model in models.items()}
    score = {}
    for name, (q, d) in absolute.items():
        score[name] = 100 * ndcg_score(relevant, unit(q) @ unit(d).T, k=10)
        relative = [bench.map(space, name)(part) for part in (q, d)]
        score[f"{name}, relative"] = 100 * ndcg_score(relevant, unit(relative[0]) @ unit(relative[1]).T, k=10)
    attached = {name: space.attach(bench.model(name), cache=bench.store.folder) for name in ("MiniLM-L3", "mpnet")}
    model = stitch(query=attached["MiniLM-L3"], document=attached["mpnet"])
    q = model.encode_query(texts[0])
    d = bench.map(space, "mpnet")(absolute["mpnet"][1])  # the document route, from cached absolute vectors
    few = model.encode_document([text[:200] for text in texts[1][:4]])
    again = attached["mpnet"].encode([text[:200] for text in texts[1][:4]])
    assert np.allclose(few, again, atol=1e-4), "the Router's document route differs from the attached document encoder"
    score["stitched, queries MiniLM-L3, documents mpnet"] = 100 * ndcg_score(relevant, unit(q) @ unit(d).T, k=10)
    for label, value in score.items():
        print(f"{label}: {value:.2f}")
    stitched = score["stitched, queries MiniLM-L3, documents mpnet"]
    kept = {name: 100 * stitched / score[name] for name in models}
    print("kept: " + ", ".join(f"{value:.1f} % of {name}" for name, value in kept.items()))
    bench.results["scifact"] = score


def part_time(bench: Bench) -> None:
    print("\n## Time and memory")
    pair = ("MiniLM-L6", "USE")
    unique = list(dict.fromkeys(bench.fit_texts))
    ready = {name: bench.embed(name, unique) for name in pair}
    start = time.perf_counter()
    space = RelativeSpace.fit_embeddings(ready, unique, anchors=300, support=4000)
    seconds = time.perf_counter() - start
    print(f"fit, two encoders, m = 300, K = 4,000, ready embeddings: {seconds:.1f} s (bar 15: {mark(seconds <= 15)})")
    bench.embed("MiniLM-L3", space.support)
    start = time.perf_counter()
    space.attach(bench.model("MiniLM-L3"), cache=bench.store.folder)
    seconds = time.perf_counter() - start
    print(f"attach of a third, support encoded before: {seconds:.1f} s (bar 2: {mark(seconds <= 2)})")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of this process, with {len(bench.models)} encoders loaded: {peak:.2f} GB")


PARTS = {
    "pairs": part_pairs,
    "late": part_late,
    "tasks": part_tasks,
    "domain": part_domain,
    "alone": part_alone,
    "time": part_time,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="time,pairs,late,alone,tasks,domain,scifact")
    parser.add_argument("--cache", default=str(ROOT / "results" / "embeddings"))
    parser.add_argument("--output", default=None)
    parser.add_argument("--scifact-documents", type=int, default=400)
    arguments = parser.parse_args()
    if not (DATA / "text").is_dir() or not (ENCODERS / "minilm-l6").is_dir():
        sys.exit(f"skipped: BANYAN_HF_DATA ({DATA}) or BANYAN_HF_ENCODERS ({ENCODERS}) is not there")
    bench = Bench(arguments.cache)
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {ParamSettings()}")
    for part in arguments.parts.split(","):
        start = time.perf_counter()
        if part == "scifact":
            part_scifact(bench, arguments.scifact_documents)
        else:
            PARTS[part](bench)
        print(f"({part}: {time.perf_counter() - start:.0f} s)", flush=True)
    if arguments.output:
        Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments.output).write_text(json.dumps(bench.results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
