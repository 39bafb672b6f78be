"""Between text and token ids: tokeniser, chat template, detokeniser, stop strings."""
