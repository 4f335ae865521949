"""Text to ids: what is read, what is left out, what is refused."""

from __future__ import annotations

import gzip
from collections import Counter

import pytest
import torch
from support import grammar_sentences

from banyan_hf.tokenizer import train_tokenizer
from banyan_hf.training.corpus import (
    BATCH,
    batches,
    collate,
    cut,
    load_texts,
    token_counts,
    tokenize,
)

LINES = [*grammar_sentences(30, seed=2), "the cat", "", "a b c", "the " * 60]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def test_plain_and_gz_are_the_same(text, tmp_path):
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    plain, zipped = (load_texts([str(path)], tmp_path / "cache" / path.suffix[1:])["text"] for path in (text, packed))
    assert list(plain) == list(zipped) == LINES


def test_several_files_in_order(text, tmp_path):
    second = tmp_path / "second.txt"
    second.write_text("one more\n")
    assert load_texts([str(text), str(second)], tmp_path / "cache")["text"][-1] == "one more"


def test_filter_is_counted(text, tmp_path):
    tokenizer = train_tokenizer(LINES, 300, show_progress=False)
    texts = load_texts([str(text)], tmp_path / "cache")
    corpus = tokenize(texts, tokenizer, min_tokens=4, max_tokens=50, cache_file=tmp_path / "tokens.arrow")
    lengths = [len(tokenizer(line).input_ids) for line in LINES]
    assert corpus.n_too_short == sum(n < 4 for n in lengths) == 3
    assert corpus.n_too_long == sum(n > 50 for n in lengths) == 1
    assert corpus.n_tokens == sum(n for n in lengths if 4 <= n <= 50)
    kept = [tokenizer(line).input_ids for line, n in zip(LINES, lengths, strict=True) if 4 <= n <= 50]
    assert list(corpus.sentences["input_ids"]) == kept


def test_bounds_are_inclusive(text, tmp_path):
    tokenizer = train_tokenizer(LINES, 300, show_progress=False)
    texts = load_texts([str(text)], tmp_path / "cache")
    exact = len(tokenizer(LINES[0]).input_ids)
    corpus = tokenize(texts, tokenizer, min_tokens=exact, max_tokens=exact, cache_file=tmp_path / "tokens.arrow")
    assert {len(ids) for ids in corpus.sentences["input_ids"]} == {exact}


def test_nothing_passes_the_filter(text, tmp_path):
    tokenizer = train_tokenizer(LINES, 300, show_progress=False)
    texts = load_texts([str(text)], tmp_path / "cache")
    with pytest.raises(ValueError, match="None of 34 sentences has 100 to 200 tokens"):
        tokenize(texts, tokenizer, min_tokens=100, max_tokens=200, cache_file=tmp_path / "tokens.arrow")


def test_batches_hold_everything_in_order(text, tmp_path):
    assert [line for batch in batches(load_texts([str(text)], tmp_path / "c")) for line in batch] == LINES


BAD = {
    "empty.txt": (b"", "empty"),
    "blank.txt": (b"\n \n\n", "empty"),
    "binary.txt": (bytes(range(256)) * 10, "UTF-8"),
    "nul.txt": (b"some text\n\0\0\0\n", "NUL"),
    "latin.txt": ("caf\u00e9 au lait\n".encode("latin-1") * 50, "UTF-8"),
    "plain.gz": (b"not a gzip file\n", "not a gzip"),
    "cut.gz": (gzip.compress(b"line of text\n" * 1000)[:40], "gzip"),
    "late.txt": (b"a fine line of text\n" * 5000 + b"\xff\xfe\x80\n", "UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_a_sentence(tmp_path, name):
    content, words = BAD[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"(?s){name}.*{words}"):
        load_texts([str(path)], tmp_path / "cache")


def test_missing_files(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.txt is not a file"):
        load_texts([str(tmp_path / "absent.txt")], tmp_path / "cache")
    with pytest.raises(ValueError, match="No text"):
        load_texts([], tmp_path / "cache")
    with pytest.raises(ValueError, match="no/such-dataset"):
        load_texts(["no/such-dataset"], tmp_path / "cache")


def test_a_long_first_line_in_any_script(tmp_path):
    """A character may lie across the end of the part that is looked at."""
    path = tmp_path / "one-line.txt"
    path.write_text("ሰላምለዓለም " * 4000, encoding="utf-8")
    assert len(load_texts([str(path)], tmp_path / "cache")) == 1


@pytest.mark.parametrize("n_short", [0, 3])
def test_token_counts(tmp_path, n_short):
    lines = ["no"] * n_short + grammar_sentences(BATCH + 200, seed=5)
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    tokenizer = train_tokenizer(lines, 120, show_progress=False)
    texts = load_texts([str(tmp_path / "text.txt")], tmp_path / "cache")
    corpus = tokenize(texts, tokenizer, min_tokens=4, max_tokens=200, cache_file=tmp_path / "tokens.arrow")
    assert corpus.n_too_short == n_short
    expected = Counter(token for ids in corpus.sentences["input_ids"] for token in ids)
    counts = token_counts(corpus, len(tokenizer))
    assert counts.tolist() == [expected[token] for token in range(len(tokenizer))]


def test_collate():
    batch = collate([{"input_ids": [5, 6, 7]}, {"input_ids": [7]}])
    assert batch["input_ids"].tolist() == [[5, 6, 7], [7, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_cut_keeps_every_token_in_its_place():
    """Against the sentences themselves: spans join up to them, none crosses a border, none is much too short."""
    torch.manual_seed(0)
    numbers = iter(range(1, 10_000))
    rows = [[next(numbers) for _ in range(n)] for n in (1, 2, 7, 30, 200, 5, 61)]
    spans = cut(collate([{"input_ids": row} for row in rows]), 8)
    lengths = spans["attention_mask"].sum(dim=1).tolist()
    pieces = [ids[:n] for ids, n in zip(spans["input_ids"].tolist(), lengths, strict=True)]
    assert [token for piece in pieces for token in piece] == [token for row in rows for token in row]
    owner = {token: number for number, row in enumerate(rows) for token in row}
    sizes: dict[int, list[int]] = {}
    for piece in pieces:
        assert len({owner[token] for token in piece}) == 1
        sizes.setdefault(owner[piece[0]], []).append(len(piece))
    assert all(max(each) - min(each) <= 1 for each in sizes.values())  # equal spans within a sentence
    assert all(3 <= size <= 16 for number in (3, 4, 6) for size in sizes[number])
    assert len(sizes[0]) == len(sizes[1]) == 1
    assert spans["attention_mask"].shape[1] == max(lengths)


def test_cut_is_anew_each_time_and_follows_the_seed():
    batch = collate([{"input_ids": list(range(1, 150))}] * 20)
    first, second = (cut(batch, 10)["attention_mask"] for _ in range(2))
    assert first.tolist() != second.tolist()
    torch.manual_seed(3)
    once = cut(batch, 10)["input_ids"]
    torch.manual_seed(3)
    assert torch.equal(cut(batch, 10)["input_ids"], once)
