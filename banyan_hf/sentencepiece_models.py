"""SentencePiece and BPEmb vocabularies as `tokenizers`, so that the paper's can be used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .tokenizer import SPACE, wrap

PRIVATE = "\ue000"  # of Unicode's private use area: stands in no text


def convert_sentencepiece(path: str | os.PathLike, *, max_length: int = 512) -> PreTrainedTokenizerFast:
    """Read a SentencePiece or BPEmb `.model` file, so that the paper's vocabularies can be used.

    Case and digits are folded first, as for BPEmb; then the model's own normalisation applies. The model's pieces keep
    their numbers; `<pad>` is appended if it has none.

    Args:
        path: of the `.model` file.
        max_length: longest input in tokens.

    Returns:
        A transformers tokenizer with the model's ids.

    Raises:
        ImportError: sentencepiece or protobuf is missing (`pip install 'banyan-hf[train]'`).
        ValueError: the file is not a SentencePiece model, or of a kind other than BPE and Unigram.
    """
    try:
        import sentencepiece.sentencepiece_model_pb2 as sentencepiece_format
        from transformers.convert_slow_tokenizer import generate_merges
    except ImportError as error:
        raise ImportError("Reading SentencePiece models needs: pip install 'banyan-hf[train]'") from error
    sp: Any = sentencepiece_format  # generated code, without types
    proto = sp.ModelProto()
    try:
        proto.ParseFromString(Path(path).read_bytes())
    except Exception as error:  # protobuf's DecodeError has no stable import path
        raise ValueError(
            f"{path} is not a SentencePiece model: {error}. A .model file is expected, not .vocab."
        ) from error
    # Control and unused pieces keep their ids under names that no text spells: somebody's "<s>" is only text.
    silent = (sp.ModelProto.SentencePiece.CONTROL, sp.ModelProto.SentencePiece.UNUSED)
    scores = [(PRIVATE * (piece.type in silent) + piece.piece, piece.score) for piece in proto.pieces]
    kind = proto.trainer_spec.model_type
    unknown = proto.trainer_spec.unk_id
    if not scores:
        raise ValueError(f"{path} holds no pieces; is it a SentencePiece .model file?")
    if kind == sp.TrainerSpec.BPE:
        vocabulary = {piece: i for i, (piece, _) in enumerate(scores)}
        merges = generate_merges(vocabulary, dict(scores))
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=scores[unknown][0], fuse_unk=True))
    elif kind == sp.TrainerSpec.UNIGRAM:
        tokenizer = Tokenizer(models.Unigram(scores, unk_id=unknown))
    else:
        raise ValueError(f"{path} is a SentencePiece model of type {kind}; only BPE and Unigram can be converted.")
    steps: list[normalizers.Normalizer] = [
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r"\p{Nd}"), "0"),
    ]
    if proto.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap))
    steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return wrap(tokenizer, max_length, unknown=scores[unknown][0])
