"""One request, one text for each structural feature that a family may have, on tiny models.

The scenarios are those of `tests/cpu/engine/test_one_request_one_text.py`.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hasten.core.models import DecoderConfig
from hasten.core.models.config import Experts, NormPlacement
from hasten.kernels.backend import available_backends, first_refusal, get_backend
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import Activation, Rope

from tests.cpu.engine.test_one_request_one_text import Workload, check_one_text
from tests.helpers.random_models import random_model, tiny_config
from tests.helpers.workbench import Workbench

PLAIN = tiny_config()
FEATURES: dict[str, DecoderConfig] = {
    "window groups": replace(
        tiny_config(windows=(24, None, 24)),
        window_rope=Rope(tuple(freq * 3 for freq in PLAIN.rope.inv_freq)),
    ),
    "soft caps": replace(PLAIN, attention_softcap=3.0, logit_softcap=4.0),
    "experts": replace(PLAIN, experts=Experts(6, 2, 48, renormalize=True)),
    "norms around": replace(
        PLAIN,
        norms=NormPlacement.AROUND,
        activation=Activation.GELU_TANH,
        embedding_multiplier=8.0,
    ),
    "norms after": replace(PLAIN, norms=NormPlacement.AFTER, joint_qk_norm=True),
    "multipliers": replace(PLAIN, residual_multiplier=0.7, logit_scale=2.0, attention_scale=0.3),
    "unrotated layers": replace(
        PLAIN, unrotated_layers=frozenset({1}), rope=Rope(PLAIN.rope.inv_freq[:6], scale=1.2)
    ),
}


@pytest.mark.parametrize("name", FEATURES)
def test_one_text(name: str) -> None:
    """In fp32 on every backend that can run the model."""
    model = random_model(FEATURES[name])
    program = model.build_program(DType.F32, DType.F32)
    for kernels in available_backends():
        if first_refusal(get_backend(kernels), program.ops, model.weights) is not None:
            continue
        bench = Workbench.make(model, kernels, DType.F32, num_blocks=400, max_model_len=256)
        workload = Workload(random.Random(1), bench.vocab_size, max_prompt=60, max_tokens=20)
        check_one_text(bench, workload.requests())


@pytest.mark.parametrize("name", ["experts", "norms around"])
def test_one_text_in_bfloat16(name: str) -> None:
    model = random_model(FEATURES[name])
    bench = Workbench.make(model, "reference", DType.BF16, num_blocks=400, max_model_len=256)
    workload = Workload(random.Random(3), bench.vocab_size, max_prompt=60, max_tokens=20)
    check_one_text(bench, workload.requests())
