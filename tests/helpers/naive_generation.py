"""Generation from the mock model one token at a time, everything computed anew: the oracle.

No batch, no cache, no drafts, no state: what the engine answers has to be this.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from hasten.core.messages import AddRequest, PositionLogprobs
from hasten.core.params import GenerationParams
from hasten.kernels.step import SamplingRows, SparseRows, StepResult

from tests.helpers.engines import VOCAB_SIZE, Answer
from tests.helpers.mock_model import MockExecutor, logits_after, sample


def generate(model: MockExecutor, request: AddRequest, sample_idx: int = 0) -> Answer:
    """The answer of one sample."""
    params, tokens = request.params, list(request.prompt_token_ids)
    answer = Answer()
    if params.prompt_logprobs is not None and sample_idx == 0:
        answer.prompt_logprobs = _score_prompt(model, request)
    while answer.finish_reason is None:
        rows = _row(params, request.prompt_token_ids, answer.token_ids, sample_idx)
        result = sample([logits_after(tuple(tokens), model)], rows)
        token_id = int(result.token_ids[0])
        tokens.append(token_id)
        answer.token_ids.append(token_id)
        if params.logprobs is not None:
            answer.logprobs.append(_entry(result))
        if token_id in params.terminal_token_ids:
            answer.finish_reason, answer.stop_token_id = "stop", token_id
        elif len(answer.token_ids) == params.max_tokens:
            answer.finish_reason = "length"
    return answer


def generate_all(model: MockExecutor, request: AddRequest) -> list[Answer]:
    return [generate(model, request, idx) for idx in range(request.params.n)]


def _score_prompt(model: MockExecutor, request: AddRequest) -> list[PositionLogprobs | None]:
    prompt, params = request.prompt_token_ids, request.params
    scores: list[PositionLogprobs | None] = [None]
    for end in range(1, len(prompt)):
        rows = _row(params, prompt, [], 0)
        rows.target_ids[0] = prompt[end]
        rows.num_logprobs[0] = params.prompt_logprobs or 0
        scores.append(_entry(sample([logits_after(tuple(prompt[:end]), model)], rows)))
    return scores


def _entry(result: StepResult) -> PositionLogprobs:
    return PositionLogprobs(
        float(result.logprobs[0]), result.top_ids[0].tolist(), result.top_logprobs[0].tolist()
    )


def _row(
    params: GenerationParams, prompt: list[int], output: list[int], sample_idx: int
) -> SamplingRows:
    counts = dict.fromkeys(prompt, 0) | Counter(output)
    masks = None
    if params.allowed_token_ids is not None:
        bits = np.zeros(-(-VOCAB_SIZE // 32) * 32, np.uint8)
        bits[list(params.allowed_token_ids)] = 1
        masks = np.packbits(bits, bitorder="little").view(np.uint32)[None, :]
    return SamplingRows(
        temperature=np.array([params.temperature], np.float32),
        top_k=np.array([params.top_k], np.int32),
        top_p=np.array([params.top_p], np.float32),
        min_p=np.array([params.min_p], np.float32),
        repetition_penalty=np.array([params.repetition_penalty], np.float32),
        frequency_penalty=np.array([params.frequency_penalty], np.float32),
        presence_penalty=np.array([params.presence_penalty], np.float32),
        seeds=np.array([params.seed], np.uint64),
        positions=np.array([len(prompt) + len(output)], np.int32),
        sample_idx=np.array([sample_idx], np.int32),
        num_logprobs=np.array([-1 if params.logprobs is None else params.logprobs], np.int32),
        target_ids=np.array([-1], np.int32),
        counts=_sparse(counts),
        bias=_sparse(_bias(params, prompt + output, len(output))),
        mask_idx=np.array([-1 if masks is None else 0], np.int32),
        masks=masks,
    )


def _bias(params: GenerationParams, tokens: list[int], num_output: int) -> dict[int, float]:
    bias = dict(params.logit_bias)
    if num_output < params.min_tokens:
        bias.update(dict.fromkeys(params.terminal_token_ids, -math.inf))
    for word in params.bad_words:
        before = list(word[:-1])
        if not before or tokens[-len(before) :] == before:
            bias[word[-1]] = -math.inf
    return bias


def _sparse(entries: dict[int, float] | dict[int, int]) -> SparseRows:
    return SparseRows(
        starts=np.array([0, len(entries)], np.int32),
        token_ids=np.array(list(entries), np.int32),
        values=np.array(list(entries.values()), np.float32),
    )
