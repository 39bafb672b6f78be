"""`ops.Sample`: without sorting.

What filters keep is always a *prefix* of the order (most likely first, lowest id among equals), and
a prefix is two numbers: a score, and how many of those equal to it are in. Scores are compared as
ordered 32-bit keys, so a prefix is found digit by digit: in each of eight passes over the row, the
count (top_k) or the mass (top_p) above each of 15 keys tells the next four bits.

A row is cut into blocks of one length. Where each stands for itself there is a program per block;
what needs sums in their order is one program per row, which passes over blocks whose largest score
is too small to add anything.

    adjust_kernel   per block: penalties, bias and mask into a copy, where any row asks for one
    greedy_kernel   per block: the largest score, then of the row; NaN and rows without a token are
                    seen here
    draw_kernel     for rows with a temperature: min_p is a count, with top_k the smaller count;
                    its prefix; top_p, over the mass of that; argmax of what is kept, plus noise
    report_kernel   log-probabilities of the raw logits, for rows that ask

Exercised by `pytest tests/cpu/triton`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
from hasten.kernels.dtypes import DType
from hasten.kernels.step import MAX_LOGPROBS, StepResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.step import SamplingRows, SparseRows, StepBatch
    from hasten.kernels.triton.binding import Activation, Binder, Kernel
    from hasten.kernels.weights import Weight
from hasten.kernels.triton.device.sample import (
    adjust_kernel,
    draw_kernel,
    greedy_kernel,
    report_kernel,
)

FLOAT_FIELDS = ("temperature", "top_p", "min_p")
INT_FIELDS = ("top_k", "positions", "sample_idx", "num_logprobs", "target_ids")


def supports(op: ops.Sample, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None if op.logits.dtype is DType.F32 else f"logits of {op.logits.dtype}, not float32"


def bind(op: ops.Sample, binder: Binder) -> Kernel:
    return _Sampler(binder.activation(op.logits), binder)


class _Sampler:
    """Chooses a token for each row of the slice that the head is computing."""

    def __init__(self, logits: Activation, binder: Binder) -> None:
        self._binder = binder
        self._logits = logits
        num_rows, self._vocab_size = logits.data.shape
        self._block = min(triton.next_power_of_2(self._vocab_size), binder.table["sample"].block_in)
        self._num_warps = binder.table["sample"].num_warps
        capacity = max(binder.capacity.max_tokens, 1)
        self._floats = binder.staged((capacity, len(FLOAT_FIELDS)), torch.float32)
        self._ints = binder.staged((capacity, len(INT_FIELDS)))
        self._seeds = binder.staged((capacity, 2))
        self._adjuster = _Adjuster(logits, binder, self._block, self._num_warps)
        self._num_blocks = -(-self._vocab_size // self._block)
        self._block_peaks = binder.zeros((num_rows, self._num_blocks), torch.float32)
        self._block_ids = binder.zeros((num_rows, self._num_blocks), torch.int32)
        self._arrived = binder.zeros((num_rows,), torch.int32)
        self._chosen = binder.zeros((num_rows,), torch.int32)
        self._peaks = binder.zeros((num_rows,), torch.float32)
        self._logprobs = binder.zeros((num_rows,), torch.float32)
        self._top_ids = binder.zeros((num_rows, MAX_LOGPROBS), torch.int32)
        self._top_logprobs = binder.zeros((num_rows, MAX_LOGPROBS), torch.float32)
        self._num_logprobs = np.zeros(0, dtype=np.int32)
        self._any_drawn = self._any_logprobs = True
        binder.before_step.append(self._prepare)

    def _prepare(self, batch: StepBatch) -> None:
        rows = batch.sampling
        self._floats.put(np.stack([getattr(rows, name) for name in FLOAT_FIELDS], axis=1))
        self._ints.put(np.stack([getattr(rows, name) for name in INT_FIELDS], axis=1))
        self._seeds.put(np.ascontiguousarray(rows.seeds).view(np.int32).reshape(-1, 2))
        self._num_logprobs = rows.num_logprobs
        self._any_drawn = bool((rows.temperature > 0).any())
        self._any_logprobs = bool((rows.num_logprobs >= 0).any())
        self._adjuster.prepare(rows)

    def __call__(self) -> None:
        num_rows, first = self._logits.num_rows, self._binder.logit_slice.start
        adjusted = self._adjuster.adjusted()
        floats, ints, seeds = self._floats.data, self._ints.data, self._seeds.data
        self._find_peaks(adjusted)
        if self._any_drawn:
            peaks = self._block_peaks, self._peaks
            self._launch(draw_kernel, adjusted, floats, ints, seeds, *peaks, self._chosen)
        if self._any_logprobs:
            reported = self._logprobs, self._top_ids, self._top_logprobs
            self._launch(report_kernel, self._logits.data, ints, self._chosen, *reported)
        if self._chosen.device.type != "meta":
            wanted = self._num_logprobs[first : first + num_rows]
            self._binder.results.append(self._result(wanted, first))

    def _find_peaks(self, adjusted: torch.Tensor) -> None:
        self._binder.launch(
            greedy_kernel,
            (self._logits.num_rows, self._num_blocks),
            adjusted,
            self._ints.data,
            self._block_peaks,
            self._block_ids,
            self._arrived,
            self._chosen,
            self._peaks,
            self._binder.logit_slice.start,
            self._vocab_size,
            num_warps=self._num_warps,
            BLOCK=self._block,
            MOST_BLOCKS=triton.next_power_of_2(self._num_blocks),
        )

    def _launch(self, kernel: Any, *operands: torch.Tensor) -> None:
        self._binder.launch(
            kernel,
            (self._logits.num_rows,),
            *operands,
            self._binder.logit_slice.start,
            self._vocab_size,
            num_warps=self._num_warps,
            BLOCK=self._block,
        )

    def _result(self, num_logprobs: npt.NDArray[np.int32], first: int) -> StepResult:
        num_rows = len(num_logprobs)
        _refuse_hopeless(_numpy(self._peaks[:num_rows]), first)
        width = max(0, int(num_logprobs.max(initial=0)))
        result = StepResult(
            _numpy(self._chosen[:num_rows]),
            np.full(num_rows, np.nan, dtype=np.float32),
            np.full((num_rows, width), -1, dtype=np.int32),
            np.full((num_rows, width), np.nan, dtype=np.float32),
        )
        asked = num_logprobs >= 0
        if asked.any():
            result.logprobs[asked] = _numpy(self._logprobs[:num_rows])[asked]
            count = np.minimum(num_logprobs, self._vocab_size)
            filled = np.arange(width) < count[:, None]
            result.top_ids[filled] = _numpy(self._top_ids[:num_rows, :width])[filled]
            result.top_logprobs[filled] = _numpy(self._top_logprobs[:num_rows, :width])[filled]
        return result


class _Adjuster:
    """Penalties, bias and masks: nothing is launched or copied where no row asks for any."""

    def __init__(self, logits: Activation, binder: Binder, block: int, num_warps: int) -> None:
        self._logits = logits
        self._binder = binder
        self._block = block
        self._num_warps = num_warps
        self._adjusted = logits.data
        self._nothing = binder.zeros((1,), torch.int32)  # stands for lists and masks not given
        self._no_values = binder.zeros((1,), torch.float32)
        self._operands: tuple[torch.Tensor, ...] = ()
        self._rows: SamplingRows | None = None
        self._asked = (False, False, False)

    def prepare(self, rows: SamplingRows) -> None:
        """Upload what the step's rows ask for; the lists are of any length, so are not kept."""
        self._asked = rows.counts is not None, rows.bias is not None, rows.mask_idx is not None
        if not any(self._asked):
            return
        if self._adjusted is self._logits.data:
            self._adjusted = torch.empty_like(self._logits.data)
        penalties = np.stack(
            (rows.repetition_penalty, rows.frequency_penalty, rows.presence_penalty)
        )
        self._rows = rows
        self._operands = (
            self._binder.to_device(penalties),
            *self._sparse(rows.counts),
            *self._sparse(rows.bias),
        )

    def adjusted(self) -> torch.Tensor:
        """The adjusted logits of the slice; the raw ones where that is the same."""
        if not any(self._asked):
            return self._logits.data
        has_counts, has_bias, has_masks = self._asked
        self._binder.launch(
            adjust_kernel,
            (self._logits.num_rows, -(-self._logits.data.shape[1] // self._block)),
            self._logits.data,
            self._adjusted,
            *self._operands,
            *self._masks(),
            self._binder.logit_slice.start,
            self._operands[0].shape[1],
            self._logits.data.shape[1],
            num_warps=self._num_warps,
            HAS_COUNTS=has_counts,
            HAS_BIAS=has_bias,
            HAS_MASKS=has_masks,
            BLOCK=self._block,
        )
        return self._adjusted

    def _masks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Masks and which row has which, once whoever writes them is done."""
        rows = self._rows
        if rows is None or rows.mask_idx is None or rows.masks is None:
            return self._nothing, self._nothing
        rows.wait_for_masks()
        to_device = self._binder.to_device
        return to_device(rows.mask_idx), to_device(rows.masks.view(np.int32))

    def _sparse(self, rows: SparseRows | None) -> tuple[torch.Tensor, ...]:
        if rows is None:
            return self._nothing, self._nothing, self._no_values
        arrays = (rows.starts, rows.token_ids, rows.values)
        return tuple(self._binder.to_device(array) for array in arrays)


def _numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A copy on the host."""
    array: npt.NDArray[Any] = tensor.cpu().numpy().copy()
    return array


def _refuse_hopeless(peaks: npt.NDArray[Any], first: int) -> None:
    for local in np.flatnonzero(~np.isfinite(peaks)).tolist():
        peak = float(peaks[local])
        reason = "allow no token" if peak == -np.inf else f"hold {peak}"
        raise FloatingPointError(f"sample: the logits of row {first + local} {reason}")
