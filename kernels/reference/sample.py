"""`ops.Sample` in torch.

Rows are independent by construction: what is done to a row beyond its argmax is done to it alone,
in fp64 where sums decide. A greedy row costs one argmax; a filtered row draws noise only for the
tokens that its filters keep.

    logits [L, vocab] fp32
      1  refuse NaN
      2  `_adjusted`: penalties, bias, mask (rows that ask for any)
      3  argmax, or `_draw` for rows with a temperature; target ids for rows that are scored
      4  `_report`: log-probabilities of the raw logits (rows that ask for them)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from hasten.kernels.reference.philox import NoiseKey, gumbel_noise, gumbel_noise_all
from hasten.kernels.step import StepResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.step import SamplingRows, SparseRows
    from hasten.kernels.weights import Weight

NUM_CANDIDATES = 1024
"""How many of the most likely tokens `top_p` sorts before it sorts them all."""


def supports(_op: ops.Sample, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.Sample, binder: Binder) -> Kernel:
    logits = binder.activation(op.logits)
    rows = binder.per_step("sampling", lambda batch: batch.sampling)
    wanted = binder.logit_slice

    def sample() -> None:
        result = sample_rows(logits.rows.float(), rows.value, wanted.start)
        binder.results.append(result)

    return sample


def sample_rows(logits: torch.Tensor, rows: SamplingRows, first: int = 0) -> StepResult:
    """Choose a token for each row of `logits` [n, vocab] fp32: rows first .. first + n of `rows`.

    `logits` is left as it is. Raises FloatingPointError when a row holds NaN or no token is
    allowed.
    """
    span = range(first, first + len(logits))
    processed = _adjusted(logits, rows, span)
    peaks, chosen = processed.max(dim=-1)
    _refuse_hopeless(peaks, span)
    token_ids = chosen.to(torch.int32).cpu().numpy()
    for local, row in enumerate(span):
        if rows.target_ids[row] >= 0:
            token_ids[local] = rows.target_ids[row]
        elif rows.temperature[row] > 0:
            token_ids[local] = _draw(processed[local], rows, row)
    return _report(logits, token_ids, rows.num_logprobs[first : first + len(logits)])


def most_likely(values: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Ids of the `num_tokens` largest of `values` [n], largest first, lowest id among equals."""
    num_tokens = min(num_tokens, len(values))
    least = values.topk(num_tokens, sorted=False).values.min()
    candidates = torch.nonzero(values >= least).squeeze(1)
    order = torch.sort(values[candidates], descending=True, stable=True).indices
    return candidates[order[:num_tokens]]


def _refuse_hopeless(peaks: torch.Tensor, span: range) -> None:
    for local in torch.nonzero(~torch.isfinite(peaks)).flatten().tolist():
        peak = float(peaks[local])
        reason = "allow no token" if peak == -np.inf else f"hold {peak}"
        raise FloatingPointError(f"sample: the logits of row {span[local]} {reason}")


# --- penalties, bias, masks ---------------------------------------------------------------------


def _adjusted(logits: torch.Tensor, rows: SamplingRows, span: range) -> torch.Tensor:
    """The logits after penalties, bias and masks; the same tensor if no row asks for any."""
    if rows.counts is None and rows.bias is None and rows.mask_idx is None:
        return logits
    adjusted = logits.clone()
    for local, row in enumerate(span):
        if rows.counts is not None:
            _penalize(adjusted[local], *_entries(rows.counts, row), rows, row)
        if rows.bias is not None:
            token_ids, values = _entries(rows.bias, row)
            index = torch.from_numpy(token_ids.astype(np.int64)).to(logits.device)
            adjusted[local].index_add_(0, index, torch.from_numpy(values).to(logits.device))
        if rows.mask_idx is not None and rows.mask_idx[row] >= 0:
            assert rows.masks is not None
            rows.wait_for_masks()
            allowed = _unpack_mask(rows.masks[rows.mask_idx[row]], logits.shape[1])
            forbidden = torch.from_numpy(~allowed).to(logits.device)
            adjusted[local].masked_fill_(forbidden, -torch.inf)
    return adjusted


def _entries(sparse: SparseRows, row: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    entries = slice(sparse.starts[row], sparse.starts[row + 1])
    return sparse.token_ids[entries], sparse.values[entries]


def _penalize(
    logits: torch.Tensor,
    token_ids: npt.NDArray[np.int32],
    counts: npt.NDArray[np.float32],
    rows: SamplingRows,
    row: int,
) -> None:
    """Apply the row's penalties to the tokens seen so far, in place. logits is [vocab]."""
    index = torch.from_numpy(token_ids.astype(np.int64)).to(logits.device)
    count = torch.from_numpy(counts).to(logits.device)
    seen = logits[index]
    repetition = float(rows.repetition_penalty[row])
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    seen = seen - float(rows.frequency_penalty[row]) * count
    seen = seen - float(rows.presence_penalty[row]) * (count > 0)
    logits[index] = seen


def _unpack_mask(words: npt.NDArray[np.uint32], vocab_size: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), count=vocab_size, bitorder="little")
    return bits.astype(np.bool_)


# --- temperature, filters, noise ----------------------------------------------------------------


def _draw(logits: torch.Tensor, rows: SamplingRows, row: int) -> int:
    """The token of one row with a temperature: argmax of what is kept plus noise."""
    tempered = logits / float(rows.temperature[row])
    key = NoiseKey(int(rows.seeds[row]), int(rows.positions[row]), int(rows.sample_idx[row]))
    kept = _kept(tempered, float(rows.min_p[row]), int(rows.top_k[row]), float(rows.top_p[row]))
    if kept is None:
        noisy = gumbel_noise_all(key, len(tempered), tempered.device).add_(tempered)
        return int(noisy.argmax())
    noisy = gumbel_noise(key, kept).add_(tempered[kept])
    return int(kept[noisy == noisy.max()].min())


def _kept(tempered: torch.Tensor, min_p: float, top_k: int, top_p: float) -> torch.Tensor | None:
    """Ids that the filters keep, None for all of them. `tempered` is [vocab]."""
    kept = None
    if min_p > 0:
        relative = _relative(tempered, tempered)
        kept = torch.nonzero(relative >= min_p).squeeze(1)
    if top_k > 0:
        pool = tempered if kept is None else tempered[kept]
        best = most_likely(pool, top_k)
        kept = best if kept is None else kept[best]
    if top_p < 1:
        pool = tempered if kept is None else tempered[kept]
        best = _nucleus(pool, top_p)
        kept = best if kept is None else kept[best]
    return kept


def _nucleus(values: torch.Tensor, top_p: float) -> torch.Tensor:
    """Ids of the smallest set, most likely first, that holds `top_p` of the mass of `values`.

    Sums run in order, in fp64, whatever the number of threads: hence cumsum and not sum.
    """
    wanted = top_p * _relative(values, values).cumsum(0)[-1]
    for num_candidates in (NUM_CANDIDATES, len(values)):
        best = most_likely(values, num_candidates)
        mass = _relative(values[best], values).cumsum(0)
        if mass[-1] >= wanted or num_candidates >= len(values):
            break
    num_kept = int(torch.searchsorted(mass, wanted)) + 1
    return best[:num_kept]


def _relative(values: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """Probabilities over that of the most likely of `among`, fp64."""
    return (values.double() - among.max().double()).exp_()


# --- log-probabilities --------------------------------------------------------------------------


def _report(
    logits: torch.Tensor, token_ids: npt.NDArray[np.int32], num_logprobs: npt.NDArray[np.int32]
) -> StepResult:
    """The step's result, with the log-probabilities that rows ask for."""
    num_rows = len(token_ids)
    width = max(0, int(num_logprobs.max(initial=0)))
    logprobs = np.full(num_rows, np.nan, dtype=np.float32)
    top_ids = np.full((num_rows, width), -1, dtype=np.int32)
    top_logprobs = np.full((num_rows, width), np.nan, dtype=np.float32)
    for row in np.flatnonzero(num_logprobs >= 0).tolist():
        scores = torch.log_softmax(logits[row : row + 1], dim=-1)[0]
        logprobs[row] = float(scores[int(token_ids[row])])
        count = min(int(num_logprobs[row]), len(scores))
        if count > 0:
            best = most_likely(scores, count)
            top_ids[row, :count] = best.cpu().numpy()
            top_logprobs[row, :count] = scores[best].cpu().numpy()
    return StepResult(token_ids, logprobs, top_ids, top_logprobs)
