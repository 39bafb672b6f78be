"""A model of the transformers library as a foreign module of the step program.

Any causal model whose attention goes through transformers' attention interface: we register ours
there, and what it reads and writes is our paged cache. What its layers ask of attention (heads,
scale, window, soft cap, sinks) is learnt by running it once on a few tokens, so nothing is believed
of its configuration. The same run proves that nothing but attention lets one token see another:
convolutions, recurrences and positions guessed from the batch would make a text depend on what ran
beside it, and are refused. Imports transformers.
Exercised by `pytest tests/cpu/models/test_transformers.py`.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.kernels.foreign import Attend

PROBE_LEN = 7
NO_WINDOW = -1
MAX_PROBE_ERROR = 1e-2
"""Relative; bf16 rounding stays below a tenth of it, a token seen where it should not is above."""

_names = (f"hasten_{number}" for number in itertools.count())


class UnsupportedModelError(ValueError):
    """A model that cannot run here; the message says what of it."""


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What one layer asks of attention. `sinks` is [num_heads], one logit per head."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class TransformersModule:
    """`ForeignModule` over a causal model of transformers. `layers` are in order of their calls."""

    def __init__(self, model: Any) -> None:
        """Takes `model` over. Raises UnsupportedModelError."""
        _refuse_by_kind(model)
        self._model = model.eval()
        self._base = model.base_model
        self._head = _head_of(model)
        self._attend: _Call = _refuse_calls
        name = next(_names)
        AttentionInterface.register(name, self._attention)
        AttentionMaskInterface.register(name, self._mask)
        self._inspects_masks = False
        model.set_attn_implementation(name)
        self.layers = self._probe()

    def to(self, dtype: torch.dtype) -> None:
        self._model.to(dtype)

    def body(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        return self._run(token_ids, positions, lambda q, k, v, _mask, _options: attend(q, k, v))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits

    def _run(self, token_ids: torch.Tensor, positions: torch.Tensor, call: _Call) -> torch.Tensor:
        self._attend = call
        output = self._base(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def _attention(
        self,
        _module: nn.Module,
        query: torch.Tensor,  # [1, num_heads, T, head_size]
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """What transformers calls; returns [1, T, num_heads, head_size]."""
        rows = (part[0].transpose(0, 1) for part in (query, key, value))
        return self._attend(*rows, attention_mask, options)[None], None

    def _mask(
        self,
        *_args: Any,
        mask_function: Callable[..., Any],
        local_size: int | None = None,
        **_options: Any,
    ) -> torch.Tensor | None:
        """None; while probing, the window of the mask asked for as the mask itself, or NO_WINDOW.

        Some models ask for a window of 0 that none of their layers uses.
        """
        if not self._inspects_masks:
            return None
        if local_size != 0:
            _check_mask(mask_function, local_size)
        return torch.tensor([NO_WINDOW if local_size is None else local_size])

    @torch.inference_mode()
    def _probe(self) -> tuple[AttentionNeeds, ...]:
        found: list[AttentionNeeds] = []

        def record(
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            mask: torch.Tensor | None,
            options: dict[str, Any],
        ) -> torch.Tensor:
            found.append(_needs(q, k, v, mask, options))
            return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

        positions = torch.arange(PROBE_LEN)
        token_ids = positions % self._model.config.get_text_config().vocab_size
        self._inspects_masks = True
        forward = self._run(token_ids, positions, record)
        self._inspects_masks = False
        layers = tuple(found)
        backward = self._run(token_ids.flip(0), positions.flip(0), record).flip(0)
        num_layers = self._model.config.get_text_config().num_hidden_layers
        if len(layers) != num_layers:
            raise UnsupportedModelError(f"{len(layers)} of {num_layers} layers attend")
        difference = (forward - backward).float().norm() / forward.float().norm()
        if not difference <= MAX_PROBE_ERROR:
            raise UnsupportedModelError("tokens see each other other than through attention")
        return layers


_Call = Any
"""attend(q, k, v, mask, options): the rows of one layer's attention, and what it asks for."""


def _refuse_calls(*_args: Any) -> torch.Tensor:
    raise RuntimeError("attention outside a step")


def _refuse_by_kind(model: Any) -> None:
    config = model.config.get_text_config()
    if config.is_encoder_decoder:
        raise UnsupportedModelError("an encoder-decoder")
    if not model.is_backend_compatible():
        raise UnsupportedModelError("its attention cannot be replaced")
    parameters = getattr(config, "rope_parameters", None) or {}
    sets = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    if any(found.get("rope_type") == "longrope" for found in sets):
        raise UnsupportedModelError("rope type 'longrope' depends on what else is in the batch")


def _head_of(model: Any) -> Any:
    """The model with a base that hands through what it is given: only its head is left."""
    head = copy.copy(model)
    head._modules = dict(model._modules)  # noqa: SLF001 (nn.Module has no public way to do this)
    head._modules[model.base_model_prefix] = _HandThrough()  # noqa: SLF001 (likewise)
    return head


class _HandThrough(nn.Module):
    def forward(self, *_args: Any, inputs_embeds: torch.Tensor, **_options: Any) -> _HiddenStates:
        return _HiddenStates(inputs_embeds)


class _HiddenStates:
    """What heads look for in a base model's output: its hidden states, and nothing else."""

    def __init__(self, last_hidden_state: torch.Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, _name: str) -> None:
        return None


def _check_mask(mask_function: Callable[..., Any], local_size: int | None) -> None:
    """Raise UnsupportedModelError unless the mask is causal, with a window where there is one."""

    def sees(query: int, key: int) -> bool:
        return bool(mask_function(0, 0, torch.tensor(query), torch.tensor(key)))

    far = 3 * local_size if local_size is not None else 30
    first = far - local_size + 1 if local_size is not None else 0
    as_wanted = sees(far, far) and sees(far, first) and not sees(far, far + 1)
    if not as_wanted or (first > 0 and sees(far, first - 1)):
        raise UnsupportedModelError("its attention mask is neither causal nor a sliding window")


def _needs(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    options: dict[str, Any],
) -> AttentionNeeds:
    if k.shape != v.shape or q.shape[2] != k.shape[2]:
        raise UnsupportedModelError("q, k and v have heads of different sizes")
    for name in ("position_bias", "head_mask"):
        if options.get(name) is not None:
            raise UnsupportedModelError(f"attention with {name}")
    window = options.get("sliding_window") if mask is None else int(mask[0])
    if window == 0:
        raise UnsupportedModelError("a layer with an attention window of no tokens")
    scale, softcap = options.get("scaling"), options.get("softcap")
    return AttentionNeeds(
        num_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        head_size=q.shape[2],
        scale=q.shape[2] ** -0.5 if scale is None else float(scale),
        window=None if window == NO_WINDOW else window,
        softcap=None if softcap is None else float(softcap),
        sinks=options.get("s_aux"),
    )
