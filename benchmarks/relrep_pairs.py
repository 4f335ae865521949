"""Every acceptance figure of relrep_hf: pairs, heads, one encoder alone, late joining, SciFact, time.

    python benchmarks/relrep_pairs.py [--parts time,USE,TREC] [--output benchmarks/results/relrep_pairs.json]

Without --parts all of it, in one run. Needs BANYAN_HF_DATA (default ../shared/data) and BANYAN_HF_ENCODERS (folder of
built encoders); skips without them. Embeddings are cached under --cache, so a second run takes minutes. Held-out texts
play no part in any choice. The file beside the JSON (.md) lists each bar and whether it was met.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle OpenMP threads sleep; spinning, they take the other's core

import argparse
import csv
import gzip
import json
import resource
import time
from functools import partial
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import torch
from relrep_common import (
    DATA,
    ENCODERS,
    NAMES,
    ROOT,
    Bench,
    found_both_ways,
    read_results,
    write_results,
)  # fmt: skip
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import ndcg_score

from relrep_hf import ParamSettings, RelativeHead, RelativeSpace, retention_report, stitch
from relrep_hf.closed_forms import CLOSED_FORMS
from relrep_hf.embedding import encoder_id
from relrep_hf.heads import fit_logistic
from relrep_hf.report import OURS
from relrep_hf.report_tasks import Task, alone_record
from relrep_hf.similarity import unit

#: Partner of MiniLM-L6 -> bar of R@1, or None where the figure is only reported.
PARTNERS = {"MiniLM-L3": 99.9, "USE": 99.8, "GloVe-SIF": 91.0, "mpnet": None, "e5": None}
THREE = ("MiniLM-L6", "MiniLM-L3", "USE")
#: Document tokens that are read on SciFact: mpnet alone takes 5 CPU minutes for them, and three times as much for 256.
SCIFACT_TOKENS = 128


def part_time(bench: Bench) -> None:
    pair = ("MiniLM-L6", "USE")
    ready = {name: bench.embed(name, bench.fit_texts) for name in pair}
    wall, cpu = time.perf_counter(), time.process_time()
    space = RelativeSpace.fit_embeddings(ready, bench.fit_texts, anchors=300, support=len(bench.fit_texts) // 2)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    # One thread, so CPU time is what the clock would show on a machine that does nothing else.
    size = f"m = {space.anchors}, K = {len(space.support):,}, ready embeddings"
    print(f"fit of two encoders, {size}: {cpu:.1f} CPU seconds, {wall:.1f} by the clock")
    bench.check("fit of two encoders, CPU seconds", cpu, 15, least=False, form="{:.1f}")
    bench.embed("MiniLM-L3", space.support)
    wall, cpu = time.perf_counter(), time.process_time()
    space.attach(bench.model("MiniLM-L3"), cache=bench.store.folder)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"attach of a third, support encoded before: {cpu:.1f} CPU seconds, {wall:.1f} by the clock")
    bench.check("attach of a third, CPU seconds after encoding", cpu, 2, least=False, form="{:.1f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    bench.check(f"memory with {len(bench.models)} encoders loaded, GB", peak, 2, least=False)


def part_pair(bench: Bench, *, other: str) -> None:
    pair = ("MiniLM-L6", other)
    space = bench.space(pair)
    models = {name: bench.model(name) for name in pair}
    report = retention_report(space, models, bench.held_out, fit_texts=bench.fit_texts, cache=bench.store.folder)
    table = {
        method: [100 * record["methods"][method]["r@1"]["value"] for record in report["pairs"]]
        for method in report["pairs"][0]["methods"]
    }
    print(f"{space.settings['steps']} steps of training; R@1 there and back:")
    for method, (a, b) in table.items():
        print(f"  {method}: {a:.2f} {b:.2f}", flush=True)
    best = [max(table[form][way] for form in CLOSED_FORMS) for way in (0, 1)]
    bar = PARTNERS[other]
    if bar is not None:
        bench.check(f"R@1 {pair[0]} / {other}, the worse way", min(table[OURS]), bar)
    gap = min(ours - rival for ours, rival in zip(table[OURS], best, strict=True))
    bench.check(f"R@1 {pair[0]} / {other} less the best closed form", gap, -0.2, form="{:+.2f}")
    bench.figures = {"report": report}


def part_late(bench: Bench) -> None:
    figures = []
    for names in (("MiniLM-L6", "USE"), ("MiniLM-L6", "USE", "mpnet")):
        space = bench.space(names)
        vectors = [bench.relative(space, name, bench.held_out) for name in ("MiniLM-L6", "mpnet")]
        figures.append(found_both_ways(*vectors))
        print("fitted on " + " + ".join(names) + ": R@1 MiniLM-L6 / mpnet {:.2f} {:.2f}".format(*figures[-1]))
    loss = max(full - late for late, full in zip(*figures, strict=True))
    bench.check("R@1 lost by mpnet joining late, points", loss, 1, least=False)
    bench.figures = {"late, all three": figures}


def alone(bench: Bench, title: str) -> None:
    """A head on relative against a head on absolute vectors of the same encoder."""
    task = bench.tasks[title]
    truth = np.asarray(task.test_labels)
    for name in THREE:
        before = [bench.embed(name, list(part)) for part in (task.train, task.test)]
        after = [bench.map(bench.space((name,)), name)(part) for part in before]
        record = alone_record(
            before[0], after[0], task.train_labels, test_absolute=before[1], test_relative=after[1], test_labels=truth
        )
        three = bench.relative(bench.space(THREE), name, list(task.test))
        shared = 100 * float((head(bench, bench.space(THREE), name, title).predict(unit(three)) == truth).mean())
        own, loss = 100 * record["absolute"]["value"], record["loss_points"]
        print(f"{name} alone: absolute {own:.1f}, its own space {100 * record['relative']['value']:.1f}", end="")
        print(f" (loss {loss['low']:+.1f} to {loss['high']:+.1f}), the space of three {shared:.1f}", flush=True)
        bench.check(f"{title}, {name} alone in its own space, loss in points", loss["value"], 1, least=False)
        bench.check(f"{title}, {name} in the space of three, loss in points", own - shared, 1, least=False)
        bench.figures.setdefault("alone", {})[name] = {**record, "space of three": shared / 100}


HEADS: dict[tuple[str, str, str], LogisticRegression] = {}


def head(bench: Bench, space: RelativeSpace, name: str, title: str) -> LogisticRegression:
    """Head of one encoder in one space, its strength chosen on that encoder alone; trained once."""
    key = (space.id, name, title)
    if key not in HEADS:
        task = bench.tasks[title]
        HEADS[key] = fit_logistic(bench.relative(space, name, list(task.train)), task.train_labels)
    return HEADS[key]


def stitched(bench: Bench, choose, title: str, *, centre: bool = False) -> tuple[float, str]:
    """Mean kept % over the six ordered pairs, and the accuracies behind it."""
    task, shares, parts = bench.tasks[title], [], []
    truth = np.asarray(task.test_labels)
    for source, target in permutations(THREE, 2):
        space = choose(*sorted((source, target), key=THREE.index))
        own = head(bench, space, target, title).predict(unit(bench.relative(space, target, list(task.test))))
        travelled = RelativeHead.from_estimator(
            head(bench, space, source, title), space=space.id,
            mean=bench.relative(space, source, list(task.train)).mean(axis=0),
        )  # fmt: skip
        unlabelled = bench.relative(space, target, list(task.train)) if centre else None
        other = travelled.predict(bench.relative(space, target, list(task.test)), centre_on=unlabelled)
        accuracy = [100 * float((guess == truth).mean()) for guess in (own, other)]
        shares.append(100 * accuracy[1] / accuracy[0])
        parts.append(f"{source} -> {target} {accuracy[1]:.1f} of {accuracy[0]:.1f}")
    return float(np.mean(shares)), "; ".join(parts)


def part_task(bench: Bench, *, title: str) -> None:
    task = bench.tasks[title]
    alone(bench, title)
    # Why TREC keeps less: questions are another domain. With the unlabelled training texts in the support it is not.
    more = tuple(text for text in task.train if text not in set(task.test))
    kinds = {
        "one space of three": (lambda *pair: bench.space(THREE), False),
        "the same, re-centred on unlabelled training texts": (lambda *pair: bench.space(THREE), True),
        "a space a pair": (lambda *pair: bench.space(pair), False),
        f"one space of three with {len(more)} unlabelled training texts": (
            lambda *pair: bench.space(THREE, more=more),
            False,
        ),
        "random + cosine": (lambda *pair: bench.space(THREE, selector="random", similarity="cosine"), False),
    }
    for label, (choose, centre) in kinds.items():
        share, parts = stitched(bench, choose, title, centre=centre)
        print(f"{label}: kept {share:.2f} % | {parts}", flush=True)
        if label in ("one space of three", "a space a pair"):
            bench.check(f"{title}, {label}, kept %", share, 97)
        bench.figures.setdefault("kept", {})[label] = {"mean": share, "pairs": parts}
    share = stitched_by_cca(bench, task)
    print(f"CCA between each pair, fitted on the same 8,000 texts: kept {share:.2f} %", flush=True)
    bench.figures["kept"]["cca"] = {"mean": share}


def stitched_by_cca(bench: Bench, task: Task) -> float:
    """Mean kept % over the six ordered pairs by the best closed form."""
    truth, shares = np.asarray(task.test_labels), []
    for source, target in combinations(THREE, 2):
        maps = CLOSED_FORMS["cca"](*(bench.embed(name, bench.fit_texts) for name in (source, target)))
        sides = [
            [unit(move(bench.embed(name, list(part)))) for part in (task.train, task.test)]
            for move, name in zip(maps, (source, target), strict=True)
        ]
        heads = [fit_logistic(train, task.train_labels) for train, _ in sides]
        table = [[(each.predict(test) == truth).mean() for _, test in sides] for each in heads]
        shares += [100 * table[0][1] / table[1][1], 100 * table[1][0] / table[0][0]]
    return float(np.mean(shares))


def part_sparse(bench: Bench) -> None:
    """R@1 when only the largest weights of each row of P are kept."""
    for pair in (("MiniLM-L6", "USE"), ("MiniLM-L6", "GloVe-SIF")):
        full = bench.space(pair)
        for top_k in (None, 4000, 2000, 1000, 300):
            if top_k is not None and top_k > len(full.support):
                continue
            space = full if top_k is None else full.sparsified(top_k)
            figures = found_both_ways(*(bench.relative(space, name, bench.held_out) for name in pair))
            kept = "all" if top_k is None else f"{top_k:,}"
            print("{} / {}, {} weights a row: R@1 {:.2f} {:.2f}".format(*pair, kept, *figures), flush=True)
            bench.figures.setdefault("/".join(pair), {})[kept] = figures


def part_scifact(bench: Bench, *, documents: int | None) -> None:
    folder = DATA / "retrieval" / "scifact"
    with gzip.open(folder / "corpus.jsonl.gz", "rt", encoding="utf-8") as handle:
        corpus = {d["_id"]: f"{d['title']} {d['text']}".strip() for d in map(json.loads, handle)}
    with open(folder / "qrels" / "test.tsv", encoding="utf-8") as handle:
        judged = [(r["query-id"], r["corpus-id"]) for r in csv.DictReader(handle, delimiter="\t") if int(r["score"])]
    with open(folder / "queries.jsonl", encoding="utf-8") as handle:
        queries = {q["_id"]: q["text"] for q in map(json.loads, handle)}
    keep = list(dict.fromkeys(document for _, document in judged))
    first = list(corpus)[:documents]
    keep += [key for key in first if key not in set(keep)]
    asked = list(dict.fromkeys(query for query, _ in judged))
    relevant = np.zeros((len(asked), len(keep)))
    row, column = ({key: n for n, key in enumerate(keys)} for keys in (asked, keep))
    for query, document in judged:
        relevant[row[query], column[document]] = 1
    texts = [queries[key] for key in asked], [corpus[key] for key in keep]
    print(f"{len(asked)} queries, {len(keep)} of {len(corpus)} documents cut to {SCIFACT_TOKENS} tokens, nDCG@10")
    pair, absolute = ("MiniLM-L3", "mpnet"), {}
    for name in pair:
        model = SentenceTransformer(str(ENCODERS / NAMES[name]), device="cpu")
        model.max_seq_length = SCIFACT_TOKENS
        q = bench.embed(name, texts[0])
        # bfloat16 inside matrix products makes 5,183 documents affordable; its effect is printed.
        with torch.autocast("cpu", dtype=torch.bfloat16):
            d = bench.store.embed(model, texts[1], name=name, identity=encoder_id(model) + "-bf16")
        exact = model.encode(texts[1][:16])
        print(
            f"{name}: cosine of bfloat16 with float32 documents {float((unit(exact) * unit(d[:16])).sum(1).min()):.5f}"
        )
        absolute[name] = q, d

    def score(q: np.ndarray, d: np.ndarray) -> float:
        return 100 * float(ndcg_score(relevant, unit(q) @ unit(d).T, k=10))

    figures = {f"{name}, own vectors": score(*absolute[name]) for name in pair}
    subjects = tuple(text for key, text in queries.items() if key not in row)  # training claims, no test query
    for label, space in (
        ("", bench.space(pair)),
        (", 809 training claims in the support", bench.space(pair, more=subjects)),
    ):
        relative = {name: [bench.map(space, name)(part) for part in absolute[name]] for name in pair}
        for name in pair:
            figures[f"{name}, relative{label}"] = score(*relative[name])
        figures[f"stitched{label}"] = score(relative["MiniLM-L3"][0], relative["mpnet"][1])
        if label:
            continue
        model = stitch(
            query=bench.model("MiniLM-L3"), document=bench.model("mpnet"), space=space, cache=bench.store.folder
        )
        assert np.allclose(model.encode_query(texts[0]), relative["MiniLM-L3"][0], atol=1e-3), "the query route differs"
        exact = bench.map(space, "mpnet")(bench.model("mpnet").encode(texts[1][:4]))
        assert np.allclose(model.encode_document(texts[1][:4]), exact, atol=1e-3), "the document route differs"
    for label, value in figures.items():
        kept = [f"{100 * value / figures[f'{name}, own vectors']:.1f} % of {name}'s own" for name in pair]
        print(f"{label}: {value:.2f}" + (f" ({', '.join(kept)})" if label.startswith("stitched") else ""))
    bench.figures = {"documents": len(keep), "tokens": SCIFACT_TOKENS, **figures}


PARTS = {
    "time": ("Time and memory", part_time),
    **{
        other: (
            f"MiniLM-L6 / {other}: 2,000 held-out texts, m = 300, 8,000 texts to fit",
            partial(part_pair, other=other),
        )
        for other in PARTNERS
    },
    "late": ("A space of MiniLM-L6 + USE that mpnet joins later, against a space of all three", part_late),
    "sparse": ("Fewer weights in P", part_sparse),
    **{
        title: (f"{title}: heads on one encoder, and from one to another", partial(part_task, title=title))
        for title in ("SST-2", "TREC", "AG News")
    },
    "scifact": ("SciFact: queries by MiniLM-L3, documents by mpnet", part_scifact),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="which (default: all, in this order: %(default)s)")
    parser.add_argument("--cache", default=str(ROOT / "results" / "embeddings"), help="folder for embeddings")
    parser.add_argument("--output", type=Path, default=None, help="JSON file; a .md file is written beside it")
    parser.add_argument("--scifact-documents", type=int, default=None, help="judged documents and the first so many")
    parser.add_argument("--small", action="store_true", help="few texts, to see that all runs; figures mean nothing")
    arguments = parser.parse_args()
    bench = Bench(arguments.cache, small=arguments.small)
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, torch {torch.__version__}, {ParamSettings()}")
    bars = []
    for name in arguments.parts.split(","):
        title, part = PARTS[name]
        print(f"\n## {title}", flush=True)
        start, bench.figures, bench.bars = time.process_time(), {}, []
        (partial(part, documents=arguments.scifact_documents) if name == "scifact" else part)(bench)
        print(f"({name}: {time.process_time() - start:.0f} CPU seconds)", flush=True)
        bars += bench.bars
        if arguments.output:
            done = {"date": time.strftime("%Y-%m-%d"), "bars": bench.bars, "figures": bench.figures}
            write_results({**read_results(arguments.output), name: done}, arguments.output)
    failed = [what for what, *_, passed in bars if not passed]
    print(f"\n{len(bars) - len(failed)} of {len(bars)} bars met. Below: {'; '.join(failed) or 'none'}.")


if __name__ == "__main__":
    main()
