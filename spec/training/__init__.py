"""Training EAGLE heads: text that the model writes, its features, and a head.

    prompts -> [generate] -> corpus of shards -> [train] -> state -> [export] -> a head's folder

`hasten train-eagle` runs all of it. Only `train` and `head` import torch.
"""
