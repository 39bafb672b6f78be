"""Proof of the kernels' machine code without a GPU: `make kernels`.

shapes      programs with the shapes of real models, on the device "meta"
recording   what these programs would launch
compiling   compiling a launch for an architecture
sass        reading registers, spills, instructions from the result
rules       what must hold of them
report      docs/kernels.md and docs/kernels.json
"""
