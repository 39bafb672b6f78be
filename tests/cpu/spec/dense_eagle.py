"""EAGLE heads again, dense and in fp32: the oracle for the recorded programs.

Written from the papers' equations over whole sequences, with no cache, no paging and no batching.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.core.models import eagle
from hasten.core.models.eagle import EagleConfig, EagleVersion
from hasten.core.models.weights import EMBED, FINAL_NORM, LM_HEAD, layer_weight
from hasten.kernels.program import WeightName

F64 = npt.NDArray[np.float64]


@dataclass(slots=True)
class DenseEagle:
    """`draft_ids` are the target's ids, where the head knows fewer tokens."""

    config: EagleConfig
    weights: Mapping[WeightName, Any]
    draft_ids: npt.NDArray[np.int32] | None = None

    def draft(self, token_ids: list[int], features: F64, depth: int) -> list[int]:
        """The tokens drafted after `token_ids` [n]; features [n - 1, width]: not the last one's.

        Greedy; each pass runs the whole sequence again.
        """
        drafted: list[int] = []
        known = np.concatenate([np.zeros((1, features.shape[1])), features])
        hidden = np.zeros((len(token_ids), self.config.layer.hidden_size))
        tokens = list(token_ids)
        for _ in range(depth):
            out, logits = self.forward(tokens, known, hidden)
            drafted.append(self.target_id(int(np.argmax(logits[-1]))))
            tokens.append(drafted[-1])
            known = np.concatenate([known, np.zeros((1, known.shape[1]))])
            hidden = np.concatenate([hidden, out[-1:]])
        return drafted

    def target_id(self, draft_id: int) -> int:
        return draft_id if self.draft_ids is None else int(self.draft_ids[draft_id])

    def forward(self, tokens: list[int], features: F64, hidden: F64) -> tuple[F64, F64]:
        embedded = self._w(EMBED)[tokens]
        if self.config.version is EagleVersion.ONE:
            x = self._norm(features, eagle.TARGET_NORM) + hidden
            fc = np.concatenate([self._w(eagle.FC_EMBED), self._w(eagle.FC_HIDDEN)], axis=1)
            residual = np.concatenate([embedded, x], axis=1) @ fc.T
            if self.config.has_fc_bias:
                residual = residual + self._w(eagle.FC_BIAS)
            qkv = residual @ self._w(layer_weight(0, "qkv")).T
        else:
            residual = features @ self._w(eagle.FC).T + hidden
            normed = self._norm(residual, eagle.HIDDEN_NORM)
            pair = np.concatenate([self._norm(embedded, eagle.EMBED_NORM), normed], axis=1)
            weight = np.concatenate([self._w(eagle.QKV_EMBED), self._w(eagle.QKV_HIDDEN)], axis=1)
            qkv = pair @ weight.T
            if self.config.norm_before_residual:
                residual = normed
        residual = residual + self._attend(qkv) @ self._w(layer_weight(0, "o")).T
        gate_up = self._norm(residual, eagle.POST_NORM) @ self._w(layer_weight(0, "gate_up")).T
        gate, up = np.split(gate_up, 2, axis=1)
        act = gate / (1 + np.exp(-gate)) * up
        residual = residual + act @ self._w(layer_weight(0, "down")).T
        read = residual
        if self.config.version is EagleVersion.THREE:
            read = self._norm(residual, FINAL_NORM)
        return residual, read @ self._w(LM_HEAD).T

    def _attend(self, qkv: F64) -> F64:
        layer = self.config.layer
        size, length = layer.head_size, len(qkv)
        heads = qkv.reshape(length, -1, size)
        q = self._rotate(heads[:, : layer.num_heads])
        k = self._rotate(heads[:, layer.num_heads : layer.num_heads + layer.num_kv_heads])
        v = heads[:, layer.num_heads + layer.num_kv_heads :]
        shared = layer.num_heads // layer.num_kv_heads
        k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
        scores[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out: F64 = np.einsum("hqk,khd->qhd", weights, v).reshape(length, -1)
        return out

    def _rotate(self, x: F64) -> F64:
        inv_freq = np.array(self.config.layer.rope.inv_freq)
        angles = np.arange(len(x))[:, None] * inv_freq
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def _norm(self, x: F64, weight: WeightName) -> F64:
        eps = self.config.layer.rms_norm_eps
        scaled: F64 = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * self._w(weight)
        return scaled

    def _w(self, name: WeightName) -> F64:
        values: F64 = self.weights[name].dequantize().astype(np.float64)
        return values
