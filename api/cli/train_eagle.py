"""`hasten train-eagle`: train an EAGLE head for a model, on text that the model writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from hasten.api.cli.flags import FlagCommand, build_options
from hasten.core.options import (
    ConfigurationError,
    EngineOptions,
    ExecutionOptions,
    ModelOptions,
    SchedulerOptions,
)
from hasten.spec.training.options import TrainEagleOptions

if TYPE_CHECKING:
    from hasten.spec.training.generate import UserTurn
    from hasten.spec.training.train import Progress

MAX_PROMPT_LEN = 512
MARK = "what the user says"


@click.command(cls=FlagCommand, option_classes=(TrainEagleOptions, ExecutionOptions))
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
def train_eagle(model: str, out: Path, **values: Any) -> None:
    """Train an EAGLE head for MODEL in the directory OUT; the head is OUT/head.

    The model writes the text first, then the head is trained on it. A run that was interrupted is
    resumed by the same command.
    """
    options = build_options(TrainEagleOptions, values)
    execution = build_options(ExecutionOptions, values)
    from hasten.core.loading import LoadError
    from hasten.spec.training.run import train_eagle as run

    engine = EngineOptions(
        model=ModelOptions(
            model=model, max_model_len=MAX_PROMPT_LEN + options.max_tokens, seed=options.seed
        ),
        scheduler=SchedulerOptions(max_num_seqs=32, max_num_batched_tokens=512),
        execution=execution,
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        prompts, turn = _prompts(engine, options)
        head = run(engine, prompts, options, out, _Printer(), turn)
    except (ConfigurationError, LoadError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"written to {head}; use it with: "
        f"hasten serve --model {model} --spec-method auto --spec-eagle-head {head}"
    )


def _prompts(
    engine: EngineOptions, options: TrainEagleOptions
) -> tuple[list[list[int]], UserTurn | None]:
    """As chats of one message, and what stands around a message where the model has a template.

    Raises ValueError and OSError for a file of prompts.
    """
    from hasten.api.text_model import template_of, tokenizer_of
    from hasten.spec.training.generate import UserTurn
    from hasten.spec.training.prompts import built_in_prompts, read_prompts

    texts = (
        built_in_prompts(options.seed)
        if options.prompts is None
        else read_prompts(Path(options.prompts))
    )[: options.num_prompts]
    tokenizer = tokenizer_of(engine)
    template = template_of(engine, tokenizer)
    turn = None
    if template is None:
        prompts = [tokenizer.encode(text) for text in texts]
    else:
        chats = [template.render([{"role": "user", "content": text}]) for text in (MARK, *texts)]
        around = chats[0].partition(MARK)[::2]
        turn = UserTurn(*(tokenizer.encode(part, add_special_tokens=False) for part in around))
        prompts = [tokenizer.encode(chat, add_special_tokens=False) for chat in chats[1:]]
    return [prompt for prompt in prompts if len(prompt) <= MAX_PROMPT_LEN], turn


class _Printer:
    """Lines that suit a log file as well as a terminal."""

    def __init__(self) -> None:
        self._num_answers = 0
        self._num_tokens = 0

    def wrote_prompts(self, num_prompts: int) -> None:
        if num_prompts % 500 == 0:
            click.echo(f"wrote {num_prompts} prompts")

    def generated(self, num_answers: int, num_tokens: int) -> None:
        self._num_answers += num_answers
        self._num_tokens += num_tokens
        if self._num_answers % 100 == 0:
            click.echo(f"generated {self._num_answers} answers, {self._num_tokens:,} tokens")

    def trained(self, progress: Progress) -> None:
        from hasten.spec.training.train import acceptance_line

        click.echo(
            f"step {progress.step} of {progress.num_steps}, {progress.num_tokens:,} tokens, loss "
            f"{progress.loss:.3f}, acceptance {acceptance_line(progress.validation)}"
        )
