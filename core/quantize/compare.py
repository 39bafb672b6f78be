"""What quantising did to a model that somebody else quantised, layer by layer.

Exercised by `pytest tests/cpu/quant/test_quantize_tools.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hasten.core.models import weight_specs
from hasten.core.models.calibratable import CalibratableDecoder
from hasten.kernels.backend import get_backend
from hasten.kernels.weights import GroupedIntWeight
from hasten.quant.calibration import wrong_share
from hasten.quant.report import LayerReport, QuantizeReport

if TYPE_CHECKING:
    import numpy.typing as npt
    from hasten.core.loading import LoadedModel
    from hasten.core.models import DecoderConfig


def compare_layers(
    exact: LoadedModel,
    quantized: LoadedModel,
    scheme: str,
    token_ids: npt.NDArray[np.int32],
    seconds: float,
) -> QuantizeReport:
    """Run both models' layers on the same hidden states, those that the quantised ones leave.

    `token_ids` [num_sequences, sequence_len]; the `seconds` that quantising took are spread over
    the layers. Raises ValueError for families whose blocks calibration does not know.
    """
    backend, length = get_backend("reference"), token_ids.shape[1]
    before = CalibratableDecoder(exact, backend, length)
    after = CalibratableDecoder(quantized, backend, length)
    hidden, layers = before.embed(token_ids), []
    for layer_idx in range(before.num_layers):
        wanted = before.run_layer(layer_idx, before.weights(layer_idx), hidden).hidden
        got = after.run_layer(layer_idx, after.weights(layer_idx), hidden)
        error = wrong_share(got.hidden, wanted, hidden)
        share_s = seconds / before.num_layers
        layers.append(LayerReport(layer_idx, error, share_s, got.largest_k, got.largest_v))
        hidden = got.hidden
    return QuantizeReport(
        scheme=scheme,
        group_size=_group_size(quantized),
        num_calibration_tokens=token_ids.size,
        bf16_bytes=bf16_layer_bytes(exact.config),
        quantized_bytes=sum(
            weight.num_bytes
            for name, weight in quantized.weights.items()
            if name.startswith("layers.")
        ),
        layers=tuple(layers),
    )


def can_run_layers(model: LoadedModel) -> bool:
    """Whether calibration knows the family's blocks."""
    try:
        CalibratableDecoder(model, get_backend("reference"), 1)
    except ValueError:
        return False
    return True


def bf16_layer_bytes(config: DecoderConfig) -> int:
    """Of all layers, were their tensors bf16."""
    return sum(
        2 * int(np.prod(part.shape))
        for spec in weight_specs(config)
        if spec.name.startswith("layers.")
        for part in spec.parts
    )


def _group_size(model: LoadedModel) -> int | None:
    """Inputs per scale of the first integer weight; None where there is none."""
    sizes = (w.group_size for w in model.weights.values() if isinstance(w, GroupedIntWeight))
    return next(sizes, None)
