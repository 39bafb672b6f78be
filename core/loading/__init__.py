"""Loading models: Hugging Face directories and GGUF files, without torch or transformers."""

from typing import TYPE_CHECKING, Any

from hasten.core.loading.errors import LoadError
from hasten.core.loading.locate import ModelLocation, locate_model

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """What reads weights is imported when it is asked for.

    The HTTP process never asks, and is smaller by 20 MB without numpy and all that reads it.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hasten.core.loading import model

    return getattr(model, name)
