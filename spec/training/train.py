"""Training a head on a corpus: resumable, seeded, watched on text that it does not learn from.

The loss of pass k is the cross-entropy against the target's likeliest tokens, as far as the head
knows them, over the answers' positions, times `PASS_DECAY` ** (k - 1). Products are bf16, weights
rounded as they will be served (`rounding`). The head starts as the target's own last layer reading
its last feature, under the target's LM head, which stays as it is.

The learning rate rises over the first steps and falls along a half cosine to a tenth. State is
written every few minutes of computing, so that a machine that others use trains and does not
only save; a run goes on where the last one stopped and ends where it would have.
Exercised by `pytest tests/cpu/spec/test_training.py`.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, dataclass, field
from itertools import chain
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hasten.core.models.weights import EMBED, FINAL_NORM, LM_HEAD, layer_weight
from hasten.spec.training.head import EagleHead, HeadShape
from hasten.spec.training.rounding import round_matrix, rounded_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hasten.core.loading import LoadedModel
    from hasten.kernels.step import I32
    from hasten.kernels.weights import Weight
    from hasten.spec.training.corpus import Corpus, Passage

PASS_DECAY = 0.8
WARMUP_STEPS = 100
FLOOR = 0.1
CLIP_NORM = 1.0
BETAS = (0.9, 0.95)
STATE_FILE, LOG_FILE = "state.pt", "log.jsonl"


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """`num_passes` drafting passes are unrolled; a step takes `batch_size` passages."""

    num_epochs: int = 4
    num_passes: int = 3
    batch_size: int = 8
    learning_rate: float = 8e-4
    max_len: int = 512
    validation_share: float = 0.03
    save_every_s: float = 300.0
    seed: int = 0


@dataclass(slots=True)
class Progress:
    """How far a run is; `validation` is the last acceptance by position."""

    step: int = 0
    num_steps: int = 0
    num_tokens: int = 0
    loss: float = 0.0
    validation: list[float] = field(default_factory=list)


class HeadTrainer:
    """One head, its optimiser and its place in the corpus."""

    def __init__(
        self,
        target: LoadedModel,
        corpus: Corpus,
        draft_ids: I32,
        num_features: int,
        folder: Path,
        options: TrainingOptions,
    ) -> None:
        torch.manual_seed(options.seed)
        config = target.config
        self.head = EagleHead(HeadShape(config, num_features, len(draft_ids)))
        self._embedding = torch.from_numpy(target.weights[EMBED].dequantize())
        self._corpus = corpus
        self._folder = folder
        self._options = options
        self._to_draft = torch.full((config.vocab_size,), -1, dtype=torch.long)
        self._to_draft[torch.from_numpy(draft_ids.astype(np.int64))] = torch.arange(len(draft_ids))
        start_from_target(self.head, target.weights, config.num_layers, draft_ids)
        trained = [p for p in self.head.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            trained, lr=options.learning_rate, betas=BETAS, weight_decay=0.01
        )
        self._held, self._order = split(corpus, options)
        per_epoch = max(1, len(self._order) // options.batch_size)
        self.progress = Progress(num_steps=per_epoch * options.num_epochs)
        self._per_epoch = per_epoch
        self._resume()

    def run(self, report: Callable[[Progress], None]) -> None:
        """Train to the end; `report` is called now and then."""
        saved_s = process_time()
        while self.progress.step < self.progress.num_steps:
            self._step()
            if process_time() - saved_s > self._options.save_every_s:
                self.save()
                saved_s = process_time()
                report(self.progress)
        self.save()
        report(self.progress)

    def save(self) -> None:
        """Write the state, with the acceptance on held-out text."""
        self.progress.validation = self.validate()
        state = {
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "progress": asdict(self.progress),
        }
        partial = self._folder / f"{STATE_FILE}.partial"
        torch.save(state, partial)
        partial.replace(self._folder / STATE_FILE)
        with (self._folder / LOG_FILE).open("a") as log:
            log.write(json.dumps(asdict(self.progress)) + "\n")

    def validate(self, num_passages: int = 32) -> list[float]:
        """How often each pass guesses the target's likeliest token, if those before were right."""
        passes = self._options.num_passes + 1
        right, asked = np.zeros(passes), np.zeros(passes)
        with (
            torch.no_grad(),
            torch.autocast("cpu", dtype=torch.bfloat16),
            rounded_weights(self.head),
        ):
            for idx in self._held[:num_passages]:
                batch = self._tensors(self._corpus[idx])
                survives = torch.ones(len(batch.rows), dtype=torch.bool)
                for k, hidden in enumerate(
                    self.head.unroll(batch.embedded, batch.features, passes)
                ):
                    rows = batch.rows + k
                    inside = rows < len(batch.likeliest) - 1
                    survives = survives & inside
                    rows = rows.clamp(max=len(hidden) - 1)
                    guess = self.head.lm_head(hidden[rows]).argmax(-1)
                    is_right = guess == self._to_draft[batch.likeliest[rows + inside.long()]]
                    asked[k] += int(survives.sum())
                    survives = survives & is_right
                    right[k] += int(survives.sum())
        return [round(float(r / max(a, 1)), 4) for r, a in zip(right, asked, strict=True)]

    def _resume(self) -> None:
        path = self._folder / STATE_FILE
        if not path.is_file():
            return
        state = torch.load(path, weights_only=True)
        self.head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])
        planned = self.progress.num_steps
        self.progress = Progress(**state["progress"])
        self.progress.num_steps = planned

    def _step(self) -> None:
        options, progress = self._options, self.progress
        for group in self._optimizer.param_groups:
            group["lr"] = options.learning_rate * schedule(progress.step, progress.num_steps)
        epoch, place = divmod(progress.step, self._per_epoch)
        order = self._order.copy()
        random.Random(f"{options.seed} {epoch}").shuffle(order)  # noqa: S311 (an order)
        chosen = order[place * options.batch_size : (place + 1) * options.batch_size]
        total = 0.0
        with rounded_weights(self.head):
            for idx in chosen:
                passage = self._corpus[idx]
                loss = self._loss(self._tensors(passage))
                (loss / len(chosen)).backward()  # type: ignore[no-untyped-call]  # torch's own
                total += float(loss.detach()) / len(chosen)
                progress.num_tokens += min(len(passage.tokens), options.max_len)
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), CLIP_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        progress.step += 1
        fade = 0.98 if progress.step > 1 else 0.0
        progress.loss = fade * progress.loss + (1 - fade) * total

    def _loss(self, batch: _Tensors) -> torch.Tensor:
        losses = []
        with torch.autocast("cpu", dtype=torch.bfloat16):
            unrolled = self.head.unroll(batch.embedded, batch.features, self._options.num_passes)
            for k, hidden in enumerate(unrolled):
                rows = batch.rows + k
                rows = rows[rows < len(hidden) - 1]
                if len(rows) == 0:
                    break
                logprobs = self.head.lm_head(hidden[rows]).float().log_softmax(-1)
                known = batch.teacher_ids[rows + 1]
                probs = batch.teacher_probs[rows + 1]
                picked = logprobs.gather(1, known.clamp(min=0))
                loss = -(picked * probs).sum(1).mean()
                losses.append(loss * PASS_DECAY**k)
        return torch.stack(losses).sum()

    def _tensors(self, passage: Passage) -> _Tensors:
        return _Tensors.of(passage, self._embedding, self._to_draft, self._options.max_len)


def split(corpus: Corpus, options: TrainingOptions) -> tuple[list[int], list[int]]:
    """What is held out and what is learnt from. All answers to a prompt are on one side, or what is
    held out would be half known.
    """
    by_prompt: dict[bytes, list[int]] = {}
    for idx in range(len(corpus)):
        by_prompt.setdefault(corpus.prompt(idx).tobytes(), []).append(idx)
    prompts = list(by_prompt.values())
    random.Random(options.seed).shuffle(prompts)  # noqa: S311 (an order, not a secret)
    num_held = max(1, int(len(prompts) * options.validation_share))
    held, learnt = prompts[:num_held], prompts[num_held:]
    return list(chain.from_iterable(held)), list(chain.from_iterable(learnt))


@dataclass(frozen=True, slots=True)
class _Tensors:
    """A passage as the head reads it; row r of the teacher is about token r.

    `rows` are the slots of the first pass that guess a token of the answer.
    """

    embedded: torch.Tensor
    features: torch.Tensor
    rows: torch.Tensor
    teacher_ids: torch.Tensor
    teacher_probs: torch.Tensor
    likeliest: torch.Tensor

    @classmethod
    def of(
        cls, passage: Passage, embedding: torch.Tensor, to_draft: torch.Tensor, max_len: int
    ) -> _Tensors:
        length = min(len(passage.tokens), max_len)
        tokens = torch.from_numpy(passage.tokens[:length].astype(np.int64))
        features = torch.from_numpy(passage.features[:length].astype(np.float32))
        before = torch.nn.functional.pad(features, (0, 0, 1, 0))[:-1]
        top_ids = torch.from_numpy(passage.top_ids[:length].astype(np.int64))
        ids = torch.where(top_ids >= 0, to_draft[top_ids.clamp(min=0)], -1)
        probs = torch.from_numpy(passage.top_probs[:length].astype(np.float32)) * (ids >= 0)
        return cls(
            embedded=embedding[tokens],
            features=before,
            rows=torch.arange(max(passage.prompt_len - 1, 0), length - 1),
            teacher_ids=ids,
            teacher_probs=probs,
            likeliest=top_ids[:, 0].clamp(min=0),
        )


def schedule(step: int, num_steps: int) -> float:
    """The learning rate's factor."""
    warmup = max(min(WARMUP_STEPS, num_steps // 20), 1)
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(num_steps - warmup, 1)
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def start_from_target(
    head: EagleHead, weights: Mapping[Any, Weight], num_layers: int, draft_ids: I32
) -> None:
    """The target's last layer, reading the last feature; its final norm and LM head, frozen."""
    last, hidden = num_layers - 1, head.shape.layer.hidden_size

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(weights[layer_weight(last, name)].dequantize())

    with torch.no_grad():
        head.qkv.weight.normal_(0, 0.01)
        head.qkv.weight[:, hidden:] = tensor("qkv")
        head.hidden_norm.weight.copy_(tensor("input_norm"))
        head.o_proj.weight.copy_(tensor("o"))
        head.post_attention_layernorm.weight.copy_(tensor("mlp_norm"))
        head.gate_up.weight.copy_(tensor("gate_up"))
        head.down_proj.weight.copy_(tensor("down"))
        head.norm.weight.copy_(torch.from_numpy(weights[FINAL_NORM].dequantize()))
        head.fc.weight.normal_(0, 0.002)
        head.fc.weight[:, -hidden:] += torch.eye(hidden)
        table = weights[LM_HEAD if LM_HEAD in weights else EMBED].dequantize()
        head.lm_head.weight.copy_(round_matrix(torch.from_numpy(table[draft_ids])))
    head.lm_head.weight.requires_grad = False


def acceptance_line(validation: Sequence[float]) -> str:
    return ", ".join(f"{share:.1%}" for share in validation)
