"""What every Banyan has in common as a transformers model: initial values, loading, saving, pushing."""

from __future__ import annotations

import os
from typing import Any

import torch
import transformers.initialization as init
from huggingface_hub import HfApi
from torch import nn
from transformers import PreTrainedModel

from .code_files import AUTO_MAP, write_code_files
from .configuration_banyan import BanyanConfig
from .message_passing import Compose, Decompose, LinearCompose, LinearDecompose
from .short_card import CARD, short_card
from .st_files import write_sentence_transformers_files


class BanyanPreTrainedModel(PreTrainedModel):
    """Initial values, and the files that make a saved folder open in sentence-transformers."""

    config_class = BanyanConfig
    base_model_prefix = "banyan"
    main_input_name = "input_ids"
    _no_split_modules: list[str] = []  # noqa: RUF012 - transformers' own declaration

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Start values of the reference: scales in (0.6, 0.9) before the sigmoid, biases 0, tokens in (-r, r)."""
        super()._init_weights(module)
        if isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -self.config.initializer_range, self.config.initializer_range)
        elif isinstance(module, Compose | Decompose):
            for name, parameter in module.named_parameters(recurse=False):
                if name.endswith("scale"):
                    init.uniform_(parameter, 0.6, 0.9)
                else:
                    init.zeros_(parameter)
        elif isinstance(module, LinearCompose | LinearDecompose):
            bound = module.weight.shape[0] ** -0.5
            init.uniform_(module.weight, -bound, bound)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            bound = module.in_features**-0.5  # torch's default for a linear layer, which the reference keeps
            init.uniform_(module.weight, -bound, bound)
            init.uniform_(module.bias, -bound, bound)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, except that pickles and checkpoints without all tensors of the encoder are refused.

        A fresh output layer is legal (the encoder alone was saved); a fresh token table or composition is not.
        """
        wanted = kwargs.pop("output_loading_info", False)
        if kwargs.get("use_safetensors") is False:
            raise ValueError("use_safetensors=False: a Banyan's weights are read from safetensors and nothing else.")
        kwargs["use_safetensors"] = True  # transformers would else fall back on pytorch_model.bin
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs)
        model, info = loaded
        if lost := sorted(key for key in info["missing_keys"] if not key.startswith("lm_head.")):
            raise ValueError(
                f"{pretrained_model_name_or_path} lacks {', '.join(lost)}: the checkpoint is incomplete or belongs to "
                "another kind of model. Save it again, or train it anew."
            )
        return (model, info) if wanted else model

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, with the code and the small files that let anybody open the folder.

        The folder then opens with transformers and with sentence-transformers, also where banyan_hf is not installed
        (there with `trust_remote_code=True`).
        """
        push = kwargs.pop("push_to_hub", False)
        names = ("repo_id", "private", "revision", "commit_message", "create_pr")
        where = {name: kwargs.pop(name) for name in names if name in kwargs}
        self.config.auto_map = dict(AUTO_MAP)  # complete and without the name of a repository: the code is right here
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            write_code_files(save_directory)
            write_sentence_transformers_files(save_directory, pad_token_id=self.config.pad_token_id)
            if push:
                where.setdefault("repo_id", os.path.basename(os.path.abspath(save_directory)))
                self.push_to_hub(token=kwargs.get("token"), **where)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:  # type: ignore[override]  # its decorator hides the type
        """Upload as transformers does; a repository without a card gets one that says how to open a Banyan.

        Push the tokenizer too, or push a saved folder with `banyan push`, which writes a full card.

        Args:
            repo_id: `owner/name`.
            **kwargs: as in transformers: private, token, revision, commit_message, ...

        Returns:
            Address of the commit.
        """
        api = HfApi(token=kwargs.get("token"))
        repo = api.create_repo(repo_id, private=kwargs.get("private"), exist_ok=True).repo_id
        if not api.file_exists(repo, CARD):
            api.upload_file(path_or_fileobj=short_card(repo).encode(), path_in_repo=CARD, repo_id=repo)
        return str(super().push_to_hub(repo_id, **kwargs))  # type: ignore[arg-type]
