"""The kernels themselves: what Triton compiles, and nothing that runs on the host.

Arguments carry no types but `tl.constexpr`: Triton gives every kernel the types that it is launched
with. Tensors are pointers to their first element; shapes are in the host modules' docstrings.
"""
