"""Loading models: Hugging Face directories and GGUF files, without torch or transformers."""

from hasten.core.loading.errors import LoadError
from hasten.core.loading.locate import ModelLocation, locate_model
from hasten.core.loading.model import LoadedModel, ModelInfo, load_model, read_model_info

__all__ = [
    "LoadError",
    "LoadedModel",
    "ModelInfo",
    "ModelLocation",
    "load_model",
    "locate_model",
    "read_model_info",
]
