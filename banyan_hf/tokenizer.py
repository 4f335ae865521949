"""Tokenizers trained on your text. Plain `tokenizers`, no class of our own."""

from __future__ import annotations

import io
import math
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

UNKNOWN, PADDING = "<unk>", "<pad>"
SPECIAL = [AddedToken(token, special=True, normalized=False) for token in (UNKNOWN, PADDING)]
SPACE = "▁"  # Metaspace: begins every word
THREADS = 4  # of sentencepiece's training: its sums depend on their number, so it is the same on every machine


def _normalizer() -> normalizers.Normalizer:
    """One spelling for each word: NFKC, lower case, digits folded to 0. White space goes when words are split."""
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"\p{Nd}"), "0"),
        ]
    )


def train_tokenizer(
    texts: Iterable[str] | Iterable[list[str]],
    vocab_size: int = 25000,
    *,
    kind: Literal["bpe", "unigram"] = "bpe",
    word_power: float = 1.0,
    max_length: int = 512,
    length: int | None = None,
    show_progress: bool = True,
) -> PreTrainedTokenizerFast:
    """Train a subword vocabulary.

    Text is normalised (NFKC, lower case, digits to 0), punctuation is split off, and words are cut into subwords by
    BPE or Unigram. With a low `word_power` the pieces are those that many different words share, stems and endings
    ("sing", "ing"), so forms of a word have a token in common: better vectors from little text. Unigram does so at any
    power: a word that begins no other word is never one piece, however frequent ("norwa", "y"); it needs sentencepiece
    (`pip install 'banyan-hf[train]'`). No special tokens are added to a sentence; `<unk>` stands for characters never
    seen in training and `<pad>` fills batches.

    Args:
        texts: strings, or lists of strings.
        vocab_size: entries, the two special ones included. A small text may give fewer.
        kind: `"bpe"` or `"unigram"`.
        word_power: a word counts with its frequency to this power; 1: as often as it stands in the texts, 0: once.
        max_length: longest input in tokens; longer ones are truncated when asked.
        length: how many texts there are, for the progress bar.
        show_progress: of the training.

    Returns:
        A transformers tokenizer. `save_pretrained` and `AutoTokenizer` round-trip it exactly. The same texts give the
        same one.

    Raises:
        ValueError: the vocabulary size leaves no room for subwords, `word_power` is not between 0 and 1, or the text is
            too small for Unigram.
        ImportError: sentencepiece, which trains Unigram, is missing.

    Example:
        >>> tokenizer = train_tokenizer(["The cat sat. A cat ran!"] * 9, vocab_size=40, show_progress=False)
        >>> tokenizer.tokenize("the CAT.")
        ['▁the', '▁cat', '▁.']
        >>> tokenizer("the CAT.").input_ids == tokenizer("the cat .").input_ids
        True
    """
    check_vocabulary(vocab_size, word_power)
    with tqdm(desc="Counting words", total=length, unit=" texts", disable=not show_progress) as bar:
        counts = _count_words(texts, bar)
    words = {word: max(1, round(count**word_power)) for word, count in counts.items()}
    # Wikipedia holds thousands of letters seen once or twice; a tenth of the vocabulary is plenty for an alphabet.
    n_letters = max(256, vocab_size // 10)
    if kind == "unigram":
        return wrap(_dress(_train_unigram(words, vocab_size, min(n_letters, vocab_size // 2))), max_length)
    tokenizer = _dress(Tokenizer(models.BPE(unk_token=UNKNOWN)))
    alphabet = {SPACE, *_frequent_letters(words, n_letters)}
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        # All of it is named: the trainer's own choice among letters of equal frequency is another in each process.
        initial_alphabet=sorted(alphabet),
        limit_alphabet=len(alphabet),
        show_progress=show_progress,
    )
    repeated = (" ".join([word] * count) for word, count in words.items())
    tokenizer.train_from_iterator(repeated, trainer=trainer, length=len(words))
    return wrap(tokenizer, max_length)


def check_vocabulary(vocab_size: int, word_power: float) -> None:
    """Refuse what `train_tokenizer` cannot do.

    Raises:
        ValueError: says which of the two is wrong.
    """
    if vocab_size < 10:
        raise ValueError(f"vocab_size={vocab_size} leaves no room for subwords; 8,000 to 32,000 is usual.")
    if not 0 <= word_power <= 1:
        raise ValueError(
            f"word_power={word_power} must lie between 0 (every word counts once) and 1 (as often as found)."
        )


def _dress(tokenizer: Tokenizer) -> Tokenizer:
    """The steps before and after the model that cuts words."""
    tokenizer.normalizer = _normalizer()
    # Blanks go before punctuation is split off, so "end." and the "end ." of the test sets are the same tokens.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return tokenizer


def _count_words(texts: Iterable[str] | Iterable[list[str]], bar: tqdm) -> Counter[str]:
    """How often each word (or mark) stands in the texts, in order of appearance."""
    dress = _dress(Tokenizer(models.BPE()))
    normalize, split = dress.normalizer.normalize_str, dress.pre_tokenizer.pre_tokenize_str
    words: Counter[str] = Counter()
    for batch in texts:
        some = [batch] if isinstance(batch, str) else batch
        for text in some:
            words.update(word.removeprefix(SPACE) for word, _ in split(normalize(text)))
        bar.update(len(some))
    return words


def _frequent_letters(words: dict[str, int], limit: int) -> list[str]:
    """The most frequent letters first; of equally frequent ones, those that came first in the texts."""
    letters: Counter[str] = Counter()
    for word, count in words.items():
        for letter in word:
            letters[letter] += count
    return [letter for letter, _ in letters.most_common(limit)]


def unigram_trainer() -> Any:
    """The module that trains Unigram: the trainer of `tokenizers` gives another vocabulary each time.

    Raises:
        ImportError: sentencepiece is missing.
    """
    try:
        import sentencepiece
    except ImportError as error:
        raise ImportError(
            "Training a Unigram tokenizer needs sentencepiece: pip install 'banyan-hf[train]'; "
            "or take the kind 'bpe' (tokenizer_kind: bpe in a recipe)."
        ) from error
    return sentencepiece


def _train_unigram(words: dict[str, int], vocab_size: int, n_letters: int) -> Tokenizer:
    """Unigram pieces of words that were counted; words with rarer letters are left out."""
    sentencepiece = unigram_trainer()
    # Marks are left out: split off, each is "▁" and itself, and so many of these would make a lone "▁" so likely that
    # "▁lived" is pruned for "▁", "lived". They become pieces of their own afterwards.
    marks = Counter({word: count for word, count in words.items() if _is_mark(word)}).most_common(n_letters // 2)
    known = set(_frequent_letters(words, n_letters))
    model = io.BytesIO()
    # A word is a line, and sentencepiece's candidates are strings that stand before two different characters: every
    # piece is shared by words. With each word twice in its line (before a blank and before the end) "during" would stay
    # whole, at the price of two points of sts16 (benchmarks/recipe_notes.md).
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(
                f"{word}\t{count}" for word, count in words.items() if known.issuperset(word) and not _is_mark(word)
            ),
            input_format="tsv",
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - len(marks) - 1,  # and <pad>
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            character_coverage=1.0,
            num_threads=THREADS,
            bos_id=-1,
            eos_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(
            f"{len(words):,} different words of {len(known):,} letters give no Unigram vocabulary of {vocab_size:,} "
            f"pieces ({error}). Give more text, another vocabulary size, or take the kind 'bpe'."
        ) from error
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(trained.id_to_piece(i), trained.get_score(i)) for i in range(1, len(trained))]  # 0 is <unk>
    total = sum(words.values())
    pieces += [(SPACE + mark, math.log(count / total)) for mark, count in marks]
    tokenizer = Tokenizer(models.Unigram([(UNKNOWN, 0.0), (PADDING, 0.0), *pieces], unk_id=0))
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def _is_mark(piece: str) -> bool:
    """What `pre_tokenizers.Punctuation` splits off."""
    return len(piece) == 1 and (piece in string.punctuation or unicodedata.category(piece).startswith("P"))


def wrap(tokenizer: Tokenizer, max_length: int, unknown: str = UNKNOWN) -> PreTrainedTokenizerFast:
    """As transformers knows it, with names for the special tokens and the longest input."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=unknown,
        pad_token=PADDING,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
