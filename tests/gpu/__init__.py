"""`make gpu-check`: everything that can only be known on a GPU, in one command of four minutes.

    __main__    parts side by side or one after the other, each in a process with a time limit
    parts       what there is to check
    models      seeded weights: tiny ones, and Llama-3-8B's geometry
    bits, texts, graphs, serving, rooflines    the checks
    report      gpu-check.json and gpu-check.md
    stand_ins   for packages that a borrowed GPU's machine lacks

Without a GPU `python -m tests.gpu --tiny` runs all of it on the interpreter (tests/gpu/test_check).
"""
