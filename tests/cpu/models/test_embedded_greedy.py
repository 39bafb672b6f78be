"""The embedded model answers as transformers does: same dequantised weights, fp32, greedy.

Ours generates; transformers then reads each whole conversation in one forward pass, and every
token must be its argmax too. By induction that is the text which transformers generates.
"""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hasten.api.text.tokenizer import Tokenizer, load_tokenizer
from hasten.core.loading import LoadedModel, load_model
from hasten.core.models import weight_specs

from tests.helpers.embedded_oracle import transformers_model
from tests.helpers.stepper import Stepper

NUM_TOKENS = 64
QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child.",
    "def fibonacci(n):\n    # complete this function",
    "List three uses of baking soda.",
    "Translate 'good morning' to Spanish, German and Italian.",
    "Why is the sky blue?",
    "What is 17 + 25? Think step by step.",
    "Tell me a joke about computers.",
    "Summarise the plot of Romeo and Juliet in two sentences.",
    "How do I boil an egg?",
    "What's the difference between a list and a tuple in Python?",
    "Name the planets of the solar system in order.",
    "Give me a packing list for a weekend of hiking.",
    "Who wrote 'Pride and Prejudice'?",
    "Convert 100 degrees Fahrenheit to Celsius.",
    "Write a polite e-mail that declines a meeting.",
    "What does the word 'serendipity' mean? Use it in a sentence.",
    "¿Cuál es la capital de Perú?",
    "Describe the water cycle 🌧️ in one paragraph.",
]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("embedded")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer: Tokenizer = load_tokenizer("embedded")
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return [
        tokenizer.encode(
            f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        for question in QUESTIONS
    ]


def test_greedy_answers_equal_transformers(model: LoadedModel, prompts: list[list[int]]) -> None:
    longest = max(map(len, prompts)) + NUM_TOKENS
    ours = Stepper(model, longest, len(prompts)).greedy(prompts, NUM_TOKENS)
    theirs = transformers_model(model)
    for question, prompt, answer in zip(QUESTIONS, prompts, ours, strict=True):
        with torch.inference_mode():
            read = theirs(torch.tensor([prompt + answer[:-1]]), logits_to_keep=NUM_TOKENS)
        assert read.logits[0].argmax(dim=-1).tolist() == answer, question


def test_our_oracle_reads_the_file_as_transformers_would(model: LoadedModel) -> None:
    """The dequantised weights are those that the `gguf` package defines, in transformers' order."""
    reader = gguf.GGUFReader(model.info.path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = model.config
    for idx in (0, config.num_layers - 1):
        parts = []
        for name, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", 0)):
            tensor = tensors[f"blk.{idx}.attn_{name}.weight"]
            rows = gguf.dequantize(tensor.data, tensor.tensor_type)
            if heads:
                rows = rows.reshape(heads, config.head_size // 2, 2, -1).swapaxes(1, 2)
            parts.append(rows.reshape(-1, config.hidden_size))
        specs = {str(spec.name): spec.name for spec in weight_specs(config)}
        ours = model.weights[specs[f"layers.{idx}.qkv"]].dequantize()
        assert np.array_equal(ours, np.concatenate(parts))
    embed = tensors["token_embd.weight"]
    ours = model.weights[specs["embed"]].dequantize()
    assert np.array_equal(ours, gguf.dequantize(embed.data, embed.tensor_type))
