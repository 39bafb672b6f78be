"""Models as data: a configuration, the weights it needs, and the program it records."""

from hasten.core.models.config import DecoderConfig
from hasten.core.models.decoder import build_program
from hasten.core.models.kv import KVFormat, kv_groups, kv_layers
from hasten.core.models.weights import TensorSpec, WeightSpec, weight_specs

__all__ = [
    "DecoderConfig",
    "KVFormat",
    "TensorSpec",
    "WeightSpec",
    "build_program",
    "kv_groups",
    "kv_layers",
    "weight_specs",
]
