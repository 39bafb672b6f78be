"""Where and how a decoder's layers keep K and V: KV groups, and each layer's place in them.

Layers share a group when they share an attention window and a dtype. Exercised by
`pytest tests/unit/loading/test_kv_format.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hasten.core.models.config import DecoderConfig
from hasten.kernels.dtypes import DType
from hasten.kernels.program import KVGroupSpec, KVLayer


@dataclass(frozen=True, slots=True)
class KVFormat:
    """The dtype of every layer's cache, and the static scales (K, V) of fp8 layers that have them.

    Layers of an fp8 cache without static scales get one per token and head.
    """

    dtypes: tuple[DType, ...]
    scales: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def uniform(cls, config: DecoderConfig, dtype: DType) -> KVFormat:
        """All layers alike."""
        return cls((dtype,) * config.num_layers)

    @property
    def key(self) -> str:
        """Tells this format from others of the same model, for hashes."""
        names = ",".join(self.dtypes) if len(set(self.dtypes)) > 1 else str(self.dtypes[0])
        return f"{names}+static{sorted(self.scales.items())}" if self.scales else names


def kv_groups(config: DecoderConfig, kv_format: KVFormat) -> tuple[KVGroupSpec, ...]:
    """One group per attention window and dtype, in order of first use."""
    kinds = list(zip(config.windows, kv_format.dtypes, strict=True))
    return tuple(
        KVGroupSpec(
            num_layers=kinds.count((window, dtype)),
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            dtype=dtype,
            window=window,
        )
        for window, dtype in dict.fromkeys(kinds)
    )


def kv_layers(config: DecoderConfig, kv_format: KVFormat) -> tuple[KVLayer, ...]:
    """Where each layer keeps its K and V."""
    kinds = list(zip(config.windows, kv_format.dtypes, strict=True))
    group_ids = {kind: idx for idx, kind in enumerate(dict.fromkeys(kinds))}
    num_seen = dict.fromkeys(kinds, 0)
    layers = []
    for kind in kinds:
        layers.append(KVLayer(group_ids[kind], num_seen[kind]))
        num_seen[kind] += 1
    return tuple(layers)
