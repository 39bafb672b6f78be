"""The sums that all products with weights share, for every kind of weight (see `matrices`).

The weight is always the left operand of the matrix instruction, 64 outputs high, and the rows of
activations are its columns: so few rows and many take the same instruction, of another width, and
each of their sums runs over the inputs in the same order. The inputs are cut into *segments*, whose
length the weight's shape alone decides; each is summed from zero, and segments are added in order,
by one program or, where rows are few, by the last of several.

A row is clamped, not masked: columns of the instruction do not mix, and what a clamped one gives is
never stored. Inputs past the last are masked, because zero times NaN is NaN.

Widths, strides and the number of segments are arguments of the kernels: one compiled product serves
all widths. Triton compiles apart where 16 does not divide them (no loads of 16 bytes), and for the
number 1 (a single segment needs no second accumulator); `IS_EVEN` says that nothing is masked.
"""

from __future__ import annotations

MIN_SEGMENT_LEN = 512
MAX_SEGMENTS = 8
UNIT = 128
"""Segments begin at its multiples; every tile's inputs divide it."""
WANTED_PROGRAMS = 512
"""Programs that keep the memory of a large device busy."""


def segments(out_width: int, width: int) -> tuple[int, int]:
    """How many segments a weight [out_width, width] has, and how many UNITs each is long."""
    tiles = -(-out_width // 64)
    most = max(1, min(MAX_SEGMENTS, width // MIN_SEGMENT_LEN))
    wanted = max(1, min(-(-WANTED_PROGRAMS // tiles), most))
    length = -(-width // (wanted * UNIT))
    return -(-width // (length * UNIT)), length
