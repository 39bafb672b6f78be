"""Progress bars of a run; plain lines where there is no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

    from hasten.evals.record import Measured


class Live:
    """Shows a bar for the block under way and a line for each finished one, on stderr."""

    def __init__(self, num_blocks: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._num_blocks = num_blocks
        self._num_done = 0
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def announce(self, title: str) -> None:
        """A line above the blocks that follow."""
        self._console.print(title, style="bold", markup=False)

    def begin(self, block: str) -> None:
        title = f"[{self._num_done + 1}/{self._num_blocks}] {block}"
        self._progress.reset(self._task, description=title, total=None)

    def advance(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def end(self, measured: Measured) -> None:
        self._num_done += 1
        if measured.error:
            state = f"not measured: {measured.error}"
        elif measured.recalled:
            state = "recalled from an earlier run"
        else:
            state = f"{measured.seconds:.1f} s"
        self._console.print(
            f"[{self._num_done}/{self._num_blocks}] {measured.name}: {state}", markup=False
        )
