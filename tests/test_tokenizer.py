"""Tokenizers: one spelling per word, exact round trips, SentencePiece's own ids."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import sentencepiece
from support import grammar_sentences
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from banyan_hf.sentencepiece_models import PRIVATE, convert_sentencepiece
from banyan_hf.tokenizer import train_tokenizer

TEXT = [
    *grammar_sentences(80, seed=1),
    "Éa naïve Café, wasn't it? (Yes: 1,234 of 5.)",
    "ሰላም ለዓለም። ውሻ እና ድመት ይተኛሉ፣ በ2015 ዓ.ም.",
    "नमस्ते दुनिया। बिल्ली चटाई पर सोती है, १२३ बार।",
    "مرحبا بالعالم، القطة تنام على السجادة ١٢٣ مرة.",
]
STRINGS = [
    *TEXT[-4:],
    "The OLD cat\nsleeps\t near  it .",
    "Crème BRÛLÉE",
    "a 😀 cat",
    "cat🙂",
    " ",
    "ﬁne ２",
    "İstanbul",
]
KINDS = ("bpe", "unigram")


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request) -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXT * 3, 400, kind=request.param, show_progress=False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("it ends.", "it ends ."), ("THE cat", "the CAT"), ("in 1999", "in 2024"), ("a  cat\n", "a cat"),
        ("(cat, dog)", "( cat , dog )"), ("ﬁre", "fire"), ("no. 5", "no. ५"),
    ],
)  # fmt: skip
def test_one_spelling(tokenizer, one, other):
    assert tokenizer(one).input_ids == tokenizer(other).input_ids


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_nothing_gives_no_ids(tokenizer, text):
    assert tokenizer(text).input_ids == []


@pytest.mark.parametrize("text", ["sat.", "wasn't", "(yes:", "ድመት።", "दुनिया।", "القطة،"])
def test_a_mark_is_one_token(tokenizer, text):
    marks = [token for token in tokenizer.tokenize(text) if token.removeprefix("▁") in set(".'(:።।،")]
    assert marks
    assert all(token.startswith("▁") for token in marks)


def test_no_special_tokens_are_added(tokenizer):
    found = tokenizer("the old cat sleeps.")
    assert set(found) == {"input_ids", "attention_mask"}
    assert not set(found.input_ids) & set(tokenizer.all_special_ids)
    assert found.input_ids == tokenizer("the old cat sleeps.", add_special_tokens=False).input_ids


def test_unknown_characters_are_one_token(tokenizer):
    assert tokenizer.unk_token_id in tokenizer("a 龍 cat").input_ids
    assert tokenizer.pad_token_id != tokenizer.unk_token_id


def test_round_trips_by_three_routes(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    routes = [type(tokenizer).from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)]
    for text in STRINGS:
        expected = tokenizer(text).input_ids
        assert plain.encode(text).ids == expected
        for route in routes:
            assert route(text).input_ids == expected
            assert route.decode(expected) == tokenizer.decode(expected)
    for route in routes:
        assert (route.pad_token_id, route.unk_token_id) == (tokenizer.pad_token_id, tokenizer.unk_token_id)
        assert route.model_max_length == 512
        assert len(route) == len(tokenizer)


@pytest.mark.parametrize("text", TEXT[-4:])
def test_scripts_lose_nothing_but_case_digits_and_spacing(tokenizer, text):
    def bare(string):
        return re.sub(r"\s", "", re.sub(r"\d", "0", string.lower()))

    assert tokenizer.unk_token_id not in tokenizer(text).input_ids
    assert bare(tokenizer.decode(tokenizer(text).input_ids)) == bare(text)


def test_size(tokenizer):
    assert len(tokenizer) <= 400
    assert max(tokenizer.get_vocab().values()) == len(tokenizer) - 1


def test_vocabulary_too_small():
    with pytest.raises(ValueError, match="vocab_size=4"):
        train_tokenizer(TEXT, 4, show_progress=False)


def test_low_power_makes_pieces_that_many_words_share():
    """One frequent word against many rare ones with the same ending."""
    stems = ["walk", "talk", "jump", "paint", "sail", "cook", "farm", "hunt"]
    text = ["singing " * 500, *(stem + "ing" for stem in stems)]
    as_found = train_tokenizer(text, 30, show_progress=False)
    types = train_tokenizer(text, 30, word_power=0.0, show_progress=False)
    assert as_found.tokenize("singing") == ["▁singing"]
    assert types.tokenize("singing")[-1] == "ing"
    assert types.tokenize("jumping")[-1] == "ing"
    assert train_tokenizer(text, 30, word_power=0.0, show_progress=False).get_vocab() == types.get_vocab()


@pytest.mark.parametrize("power", [-0.1, 1.5])
def test_impossible_power(power):
    with pytest.raises(ValueError, match=f"word_power={power}"):
        train_tokenizer(TEXT, 100, word_power=power, show_progress=False)


def test_text_too_small_for_unigram():
    with pytest.raises(ValueError, match=r"0 different words .* take the kind 'bpe'"):
        train_tokenizer([""], 100, kind="unigram", show_progress=False)


def test_unigram_without_sentencepiece(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ImportError, match=r"banyan-hf\[train\]"):
        train_tokenizer(TEXT, 100, kind="unigram", show_progress=False)


@pytest.mark.parametrize("kind", KINDS)
def test_training_repeats(kind):
    one, two = (train_tokenizer(TEXT, 200, kind=kind, show_progress=False).get_vocab() for _ in range(2))
    assert one == two


@pytest.fixture(scope="module", params=KINDS)
def sentencepiece_file(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sp")
    (folder / "text.txt").write_text("\n".join(re.sub(r"\d", "0", text.lower()) for text in TEXT * 2))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "sp"), vocab_size=280, model_type=request.param,
        hard_vocab_limit=False, minloglevel=2, num_threads=1,
    )  # fmt: skip
    return folder / "sp.model"


def test_sentencepiece_ids(sentencepiece_file, tmp_path):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_file))
    ours = convert_sentencepiece(sentencepiece_file)
    ours.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    strings = [*STRINGS, *TEXT[:20], "", "end.end ..", "cat  dog ", "xx▁yy", "龍龍 a", "...?!"]
    for text in strings:
        folded = re.sub(r"\d", "0", text.lower())
        expected = processor.encode(folded)
        assert ours(text).input_ids == expected, text
        assert again(text).input_ids == expected, text


def test_sentencepiece_control_pieces_are_not_text(sentencepiece_file):
    """Somebody's text may hold "<s>": that is four characters, not the piece that begins a sentence."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_file))
    assert convert_sentencepiece(sentencepiece_file)("a <s> cat").input_ids == processor.encode("a <s> cat")


def test_sentencepiece_vocabulary(sentencepiece_file):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_file))
    ours = convert_sentencepiece(sentencepiece_file, max_length=77)
    pieces = ours.convert_ids_to_tokens(list(range(len(processor))))
    silent = [i for i in range(len(processor)) if processor.is_control(i)]  # keep their ids, under unspeakable names
    assert all(pieces[i].startswith(PRIVATE) == (i in silent) for i in range(len(processor)))
    assert [piece.removeprefix(PRIVATE) for piece in pieces] == [
        processor.id_to_piece(i) for i in range(len(processor))
    ]
    assert ours.model_max_length == 77
    assert ours.pad_token_id == len(ours) - 1 == len(processor)


@pytest.mark.parametrize("content", [b"", b"\x00\xff\x13not protobuf", b"the\t-3\ncat\t-4\n"])
def test_not_a_sentencepiece_file(tmp_path, content):
    path = tmp_path / "bad.model"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.model"):
        convert_sentencepiece(path)
    with pytest.raises(ValueError, match=r"none\.model"):
        convert_sentencepiece(tmp_path / "none.model")


TRAIN = """
import json, sys
from banyan_hf.tokenizer import train_tokenizer
letters = [chr(0x4E00 + i) for i in range(900)]  # each as frequent as any other, and more than are kept
text = [" ".join(letters[i : i + 4]) + " the cat sat" for i in range(900)]
tokenizer = train_tokenizer(text, 400, kind=sys.argv[1], show_progress=False)
print(json.dumps(sorted(tokenizer.get_vocab().items())))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_every_process_trains_the_same(kind):
    """Also where letters of equal frequency compete: hash tables have another order in each process."""
    command = [sys.executable, "-c", TRAIN, kind]
    vocabularies = {subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)}
    assert len(vocabularies) == 1
    assert len(json.loads(vocabularies.pop())) > 200
