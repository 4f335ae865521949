"""Banyan: sentence embeddings that induce their own trees."""

from transformers import AutoConfig, AutoModel, AutoModelForPreTraining

from .model.configuration_banyan import BanyanConfig
from .model.modeling_banyan import BanyanForPreTraining, BanyanModel
from .persistence import default_model, load_encoder

__version__ = "0.1.0"
__all__ = [
    "BanyanConfig",
    "BanyanForPreTraining",
    "BanyanModel",
    "__version__",
    "default_model",
    "load_encoder",
]

AutoConfig.register("banyan", BanyanConfig, exist_ok=True)
AutoModel.register(BanyanConfig, BanyanModel, exist_ok=True)
AutoModelForPreTraining.register(BanyanConfig, BanyanForPreTraining, exist_ok=True)
