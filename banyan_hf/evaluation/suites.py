"""Which tasks a suite is made of: on local files where a data folder is given, MTEB's own from the Hub where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import mteb
from mteb.abstasks import AbsTask

from . import local_tasks as local
from .formats import read_word_pairs

ENGLISH = ("sts12", "sts13", "sts14", "sts15", "stsb", "sick")
LEXICAL = {
    "simlex": "simlex.tsv",
    "wordsim_similarity": "wordsim_similarity_goldstandard.txt",
    "wordsim_relatedness": "wordsim_relatedness_goldstandard.txt",
}
RETRIEVAL = ("scifact", "quora_small")
TOPICS = ("trec", "subj", "ag_news")
SEMREL = {"af": "afr-Latn", "am": "amh-Ethi", "ar": "arb-Arab", "es": "spa-Latn", "hi": "hin-Deva", "id": "ind-Latn"}


@dataclass(frozen=True)
class Entry:
    """One row of a result table.

    Args:
        name: of the row and of the result file.
        suite: the section of the table.
        task: what MTEB runs.
    """

    name: str
    suite: str
    task: AbsTask


def _english(data: Path) -> list[AbsTask]:
    return [local.pairs_task(name, data / "eval" / "english" / f"{name}_test.csv") for name in ENGLISH]


def _lexical(data: Path) -> list[AbsTask]:
    folder = data / "eval" / "english"
    return [local.pairs_task(name, folder / file, read=read_word_pairs) for name, file in LEXICAL.items()]


def _retrieval(data: Path) -> list[AbsTask]:
    return [local.retrieval_task(name, data / "retrieval" / name) for name in RETRIEVAL]


def _classification(data: Path) -> list[AbsTask]:
    folder = data / "eval" / "english"
    sst2 = (folder / "sst_train.tsv.gz", folder / "sst_dev.tsv")
    mrpc = (folder / "mrpc_train.csv", folder / "mrpc_test.csv")
    return [
        local.probe_task("sst2_paper", *sst2, header=True, label_first=False),
        local.pair_probe_task("mrpc_paper", *mrpc),
        local.classification_task("sst2_mteb", *sst2, header=True, label_first=False),
        local.pair_classification_task("mrpc_mteb", mrpc[1]),
        *(
            local.classification_task(name, *(data / "classification" / name / f"{s}.tsv" for s in ("train", "test")))
            for name in TOPICS
        ),
    ]


def _semrel(data: Path) -> list[AbsTask]:
    folder = data / "eval" / "semrel"
    return [
        local.pairs_task(f"semrel_{name}", folder / f"{name}_test.csv", language=language)
        for name, language in SEMREL.items()
    ]


LOCAL: dict[str, Callable[[Path], list[AbsTask]]] = {
    "english": _english,
    "lexical": _lexical,
    "retrieval": _retrieval,
    "classification": _classification,
    "semrel": _semrel,
}
# MTEB has no SimLex, WordSim, SST-2, MRPC, TREC or Subj, and no Spanish in SemRel.
ON_HUB = {
    "english": ("STS12", "STS13", "STS14", "STS15", "STSBenchmark", "SICK-R"),
    "retrieval": ("QuoraRetrieval", "ArguAna", "SciFact"),
    "classification": ("NewsClassification.v2",),
    "semrel": ("SemRel24STS",),
}
SEMREL_ON_HUB = ("afr", "amh", "arb", "hin", "ind")


def entries(suites: Sequence[str], data: Path | None = None) -> list[Entry]:
    """The rows of one or more suites.

    Args:
        suites: names of suites, or `mteb:Task,Task` for any tasks that MTEB has.
        data: folder with eval/, retrieval/ and classification/; local files are read and checked here. Without it the
            tasks are MTEB's own, downloaded when they run.

    Returns:
        Entries with distinct names, in the order asked for.

    Raises:
        ValueError: there is no such suite or task, or a file is not usable.

    Example:
        >>> [entry.name for entry in entries(["english"])]
        ['STS12', 'STS13', 'STS14', 'STS15', 'STSBenchmark', 'SICK-R']
    """
    found = [entry for suite in suites for entry in _suite(suite, data)]
    if not found:
        raise ValueError(f"No suite was named. Known: {', '.join(LOCAL)}, or mteb:Task,Task.")
    names = [entry.name for entry in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(twice)} would be scored twice. Name every suite once.")
    return found


def file_entries(paths: Sequence[Path]) -> list[Entry]:
    """One row for each CSV of pairs (sent1, sent2, score).

    Raises:
        ValueError: a file is not usable, or its name is that of another or of the table's own.
    """
    names = [path.stem for path in paths]
    if taken := {"manifest", "mean"} & set(names):
        raise ValueError(f"A file is called {min(taken)}, as something else in the results is. Rename it.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"Two files are called {twice[0]}: their results would be one file. Rename one.")
    return [Entry(path.stem, "files", local.pairs_task(path.stem, path)) for path in paths]


def _suite(suite: str, data: Path | None) -> list[Entry]:
    if suite.startswith("mteb:"):
        names = [name.strip() for name in suite.removeprefix("mteb:").split(",") if name.strip()]
        return [Entry(name, "mteb", _from_hub(name)) for name in names]
    if suite not in LOCAL:
        raise ValueError(f"There is no suite {suite!r}. Known: {', '.join(LOCAL)}, or mteb:Task,Task.")
    if data is not None:
        if not data.is_dir():
            raise ValueError(f"--data {data} is not a folder. It must hold eval/, retrieval/ and classification/.")
        return [Entry(task.metadata.name, suite, task) for task in LOCAL[suite](data)]
    if suite not in ON_HUB:
        raise ValueError(f"MTEB has no tasks for the suite {suite!r}: give a folder with its files by --data.")
    if suite == "semrel":
        tasks = {f"SemRel24STS-{code}": mteb.get_task("SemRel24STS", hf_subsets=[code]) for code in SEMREL_ON_HUB}
    else:
        tasks = {name: _from_hub(name) for name in ON_HUB[suite]}
    return [Entry(name, suite, task) for name, task in tasks.items()]


def _from_hub(name: str) -> AbsTask:
    try:
        return mteb.get_task(name)
    except KeyError as error:
        raise ValueError(
            f"MTEB {mteb.__version__} has no task {name!r}. {error.args[0].split('found. ')[-1]}"
        ) from error
