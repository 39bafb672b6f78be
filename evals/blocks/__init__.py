"""Blocks: what a suite is made of.

A block observes both sides of a pair and turns what it saw into measures. Its fields are its table
in the suite's TOML; what it saw is stored in the record, so that measures can be made of it again.
"""

from __future__ import annotations

from hasten.evals.blocks.chat import ChatBlock, ChatResult
from hasten.evals.blocks.choice import ChoiceBlock, ChoiceResult
from hasten.evals.blocks.continuation import (
    ContinuationBlock,
    ContinuationResult,
    SyntheticBlock,
)
from hasten.evals.blocks.generation import GenerationBlock, GenerationResult
from hasten.evals.blocks.harness import HarnessBlock, HarnessResult
from hasten.evals.blocks.invariance import InvarianceBlock, InvarianceResult
from hasten.evals.blocks.memory import MemoryBlock, MemoryResult
from hasten.evals.blocks.serving import ServingBlock, ServingResult
from hasten.evals.blocks.structured import StructuredBlock, StructuredResult
from hasten.evals.blocks.text import TextBlock, TextResult

__all__ = ["Block", "BlockResult"]

Block = (
    TextBlock
    | ChatBlock
    | ChoiceBlock
    | ContinuationBlock
    | SyntheticBlock
    | StructuredBlock
    | GenerationBlock
    | HarnessBlock
    | InvarianceBlock
    | MemoryBlock
    | ServingBlock
)

BlockResult = (
    TextResult
    | ChatResult
    | ChoiceResult
    | ContinuationResult
    | GenerationResult
    | HarnessResult
    | InvarianceResult
    | MemoryResult
    | ServingResult
    | StructuredResult
)
