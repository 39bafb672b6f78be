"""What steps give, as gRPC messages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hasten.api.grpc import hasten_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.api.http.served_model import Work
    from hasten.api.text.sample_text import SampleDelta
    from hasten.core.messages import PositionLogprobs


class GenerationWriter:
    """Writes the messages of one call, and counts for the last one of each sample."""

    def __init__(self, request_id: str, work: Work) -> None:
        self._request_id = request_id
        self._work = work
        self._num_tokens: Counter[int] = Counter()

    def count(self, delta: SampleDelta) -> None:
        self._num_tokens[delta.sample_idx] += delta.num_tokens

    def message(self, delta: SampleDelta) -> pb.GenerateResponse:
        """What the client sees of one step; counted already."""
        message = pb.GenerateResponse(
            request_id=self._request_id,
            sample_idx=delta.sample_idx,
            text=delta.text,
            token_ids=[token.token_id for token in delta.tokens],
            logprobs=[
                token_logprobs(token.logprobs, self._work.params.logprobs or 0)
                for token in delta.tokens
                if token.logprobs is not None
            ],
            finish_reason=delta.finish_reason or "",
        )
        if isinstance(delta.stop_reason, str):
            message.stop_text = delta.stop_reason
        elif delta.stop_reason is not None:
            message.stop_token_id = delta.stop_reason
        if delta.finish_reason is not None:
            message.num_prompt_tokens = self._work.num_prompt_tokens
            message.num_cached_tokens = delta.num_cached_tokens
            message.num_generated_tokens = self._num_tokens[delta.sample_idx]
            message.seed = self._work.resolved.seed
        return message


def token_logprobs(position: PositionLogprobs, num_top: int) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        logprob=position.token_logprob,
        top_ids=position.top_token_ids[:num_top],
        top_logprobs=position.top_logprobs[:num_top],
    )


def score_response(
    prompt: Sequence[int], positions: Sequence[PositionLogprobs | None], num_top: int
) -> pb.ScoreResponse:
    """`positions` has one entry per prompt token; nothing comes before the first."""
    return pb.ScoreResponse(
        token_ids=prompt,
        logprobs=[
            token_logprobs(position, num_top) for position in positions if position is not None
        ],
    )
