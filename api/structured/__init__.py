"""Structured output: what clients may ask an output to follow, and the masks that make it so.

    response_format, structured_outputs, forced tools
        | `formats`, `json_schema`: to a grammar, or 400 with a JSON pointer    (API process)
        v
    grammar (text, in llguidance's form)
        | `compiler`: bounded in time and memory                              (engine process)
        v
    `masks`: which tokens may follow, beside the model; `closing`: an end within the limit

Not here: sampling under masks (`kernels`), reading what a model writes unforced
(`api.text.tool_parsers`).
Exercised by `pytest tests/unit/structured tests/cpu/structured`.
"""
