"""The kernels of `kernels.triton.sample`."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.philox import MULTIPLIERS, NUM_ROUNDS, WEYL
from hasten.kernels.step import MAX_LOGPROBS

FIRST_MULTIPLIER: tl.constexpr = tl.constexpr(MULTIPLIERS[0])
SECOND_MULTIPLIER: tl.constexpr = tl.constexpr(MULTIPLIERS[1])
FIRST_WEYL: tl.constexpr = tl.constexpr(WEYL[0])
SECOND_WEYL: tl.constexpr = tl.constexpr(WEYL[1])
ROUNDS: tl.constexpr = tl.constexpr(NUM_ROUNDS)
TOP: tl.constexpr = tl.constexpr(MAX_LOGPROBS)
FLOAT_WIDTH: tl.constexpr = tl.constexpr(3)
INT_WIDTH: tl.constexpr = tl.constexpr(5)
NEGATIVE: tl.constexpr = tl.constexpr(0x80000000)
NOBODY: tl.constexpr = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _wide_product(a, b: tl.constexpr):
    """The high and low words of a * b, uint32."""
    return tl.umulhi(a, tl.full(a.shape, b, tl.uint32)), a * tl.full(a.shape, b, tl.uint32)


@triton.jit
def gumbel_noise(token_id, position, sample_idx, low, high):
    """The noise of `kernels.philox.gumbel_noise` for int32 token ids, fp32."""
    first = tl.full(token_id.shape, 0, tl.uint32) + position.to(tl.uint32)
    second = (token_id // 4).to(tl.uint32)
    third = tl.full(token_id.shape, 0, tl.uint32) + sample_idx.to(tl.uint32)
    fourth = tl.full(token_id.shape, 0, tl.uint32)
    for _ in tl.static_range(ROUNDS):
        left_high, left_low = _wide_product(first, FIRST_MULTIPLIER)
        right_high, right_low = _wide_product(third, SECOND_MULTIPLIER)
        first = right_high ^ second ^ low
        second = right_low
        third = left_high ^ fourth ^ high
        fourth = left_low
        low = low + tl.full((1,), FIRST_WEYL, tl.uint32)
        high = high + tl.full((1,), SECOND_WEYL, tl.uint32)
    lane = token_id % 4
    word = tl.where(lane == 0, first, tl.where(lane == 1, second, third))
    word = tl.where(lane == 3, fourth, word)
    # fp64: near 1, where the noise is large, fp32 has too few numbers for 32 bits.
    uniform = (word.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def _key(score):
    """Scores as uint32 in the same order."""
    score = tl.where(score == 0.0, 0.0, score)  # -0 and 0 are equals
    bits = score.to(tl.uint32, bitcast=True)
    return tl.where(bits >= NEGATIVE, ~bits, bits | NEGATIVE)


@triton.jit
def _scores(logits, first, factor, vocab_size, BLOCK: tl.constexpr):
    """A block of logits times 1 / temperature; -inf past the vocabulary."""
    token_id = first + tl.arange(0, BLOCK)
    score = tl.load(logits + token_id, mask=token_id < vocab_size, other=float("-inf"))
    return token_id, score * factor


@triton.jit
def _reaches(block_peaks, first, factor, key, BLOCK: tl.constexpr):
    """Whether a block has a key >= `key`; where not, it adds nothing, and need not be read."""
    # The largest score is that of the largest logit: a positive factor, rounded, keeps their order.
    return _key(tl.load(block_peaks + first // BLOCK) * factor) >= key


@triton.jit
def _find(logits, block_peaks, factor, peak, limit, wanted, vocab_size, BY_MASS: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    """The key at which the count, or the mass, of keys >= it first reaches `wanted`.

    Also how much lies strictly above it. Only keys >= `limit` are counted.
    """
    digit = tl.arange(0, 16).to(tl.uint32)
    found = tl.full((), 0, tl.uint32)
    step = tl.full((), 1 << 28, tl.uint32)
    for _ in range(8):
        candidate = found + digit * step
        least = tl.maximum(found + step, limit)
        above = tl.zeros((16,), tl.float32)
        for first in range(0, vocab_size, BLOCK):
            if _reaches(block_peaks, first, factor, least, BLOCK):
                token_id, score = _scores(logits, first, factor, vocab_size, BLOCK)
                key = _key(score)
                amount = tl.where((key >= limit) & (token_id < vocab_size), 1.0, 0.0)
                if BY_MASS:
                    amount = amount * tl.exp(score - peak)
                counted = tl.where(key[None, :] >= candidate[:, None], amount[None, :], 0.0)
                above += tl.sum(counted, axis=1)
        # Amounts fall from digit to digit: the last that reaches what is wanted is the next digit.
        # It is 0 where none does, so what lies above that need not be known.
        reached = tl.sum(((above >= wanted) & (digit > 0)).to(tl.int32), axis=0)
        found += reached.to(tl.uint32) * step
        step = step >> 4
    strictly = 0.0
    for first in range(0, vocab_size, BLOCK):
        if _reaches(block_peaks, first, factor, found, BLOCK):
            token_id, score = _scores(logits, first, factor, vocab_size, BLOCK)
            key = _key(score)
            amount = tl.where((key > found) & (token_id < vocab_size), 1.0, 0.0)
            if BY_MASS:
                amount = amount * tl.exp(score - peak)
            strictly += tl.sum(amount, axis=0)
    return found, strictly


@triton.jit
def _mass(logits, block_peaks, factor, peak, limit, equals, vocab_size, BLOCK: tl.constexpr):
    """The mass of a prefix: keys above `limit`, and the first `equals` of those at it."""
    total = 0.0
    seen = 0
    for first in range(0, vocab_size, BLOCK):
        if _reaches(block_peaks, first, factor, limit, BLOCK):
            token_id, score = _scores(logits, first, factor, vocab_size, BLOCK)
            kept, seen = _within(_key(score), token_id, limit, equals, seen, vocab_size)
            total += tl.sum(tl.where(kept, tl.exp(score - peak), 0.0), axis=0)
    return total


@triton.jit
def _within(key, token_id, limit, equals, seen, vocab_size):
    """Which of a block belong to a prefix; and how many at its limit there were so far."""
    inside = token_id < vocab_size
    tied = ((key == limit) & inside).to(tl.int32)
    rank = seen + tl.cumsum(tied, axis=0)
    kept = inside & ((key > limit) | ((tied != 0) & (rank <= equals)))
    return kept, seen + tl.sum(tied, axis=0)


@triton.jit
def _best(score, token_id):
    """The largest score of a block, and the lowest id that has it."""
    best = tl.max(score, axis=0)
    return best, tl.min(tl.where(score == best, token_id, NOBODY), axis=0)


@triton.jit
def _choose(logits, block_peaks, factor, limit, equals, position, sample_idx, low, high,
            vocab_size, BLOCK: tl.constexpr):  # fmt: skip
    """Argmax over a prefix of score plus noise."""
    best = float("-inf")
    best_id = NOBODY
    seen = 0
    for first in range(0, vocab_size, BLOCK):
        if _reaches(block_peaks, first, factor, limit, BLOCK):
            token_id, score = _scores(logits, first, factor, vocab_size, BLOCK)
            kept, seen = _within(_key(score), token_id, limit, equals, seen, vocab_size)
            noise = gumbel_noise(token_id, position, sample_idx, low, high)
            noisy = tl.where(kept, score + noise, float("-inf"))
            other, other_id = _best(noisy, token_id)
            # Of equals the first stays: its id is lower.
            best_id = tl.where(other > best, other_id, best_id)
            best = tl.maximum(best, other)
    return best_id


@triton.jit(do_not_specialize=["first_row"])
def greedy_kernel(
    logits,  # [rows, vocab_size] fp32, adjusted
    ints,  # [rows of the step, 5]: INT_FIELDS
    block_peaks,  # [rows, blocks] fp32: the largest logit of each block, NaN if one is
    block_ids,  # [rows, blocks] int32: whose it is
    arrived,  # [rows] int32, zero between launches
    chosen,  # [rows] int32
    peaks,  # [rows] fp32: the largest logit, NaN if one is
    first_row,
    vocab_size,
    BLOCK: tl.constexpr,
    MOST_BLOCKS: tl.constexpr,
):
    """The largest logit of each block, and by the last of a row's programs, of the row.

    Its token, or the one to score, is what greedy rows choose.
    """
    row = tl.program_id(0)
    num_blocks = tl.num_programs(1)
    own = row * num_blocks + tl.program_id(1)
    row_logits = logits + row.to(tl.int64) * vocab_size
    token_id, score = _scores(row_logits, tl.program_id(1) * BLOCK, 1.0, vocab_size, BLOCK)
    is_nan = tl.sum((score != score).to(tl.int32), axis=0) > 0
    peak, best_id = _best(score, token_id)
    tl.store(block_peaks + own, tl.where(is_nan, float("nan"), peak))
    tl.store(block_ids + own, best_id)
    tl.debug_barrier()  # the block is written before its arrival is counted
    if tl.atomic_add(arrived + row, 1) == num_blocks - 1:
        block = tl.arange(0, MOST_BLOCKS)
        place = row * num_blocks + block
        held = block < num_blocks
        each = tl.load(block_peaks + place, mask=held, other=float("-inf"), cache_modifier=".cg")
        ids = tl.load(block_ids + place, mask=held, other=NOBODY, cache_modifier=".cg")
        any_nan = tl.sum((each != each).to(tl.int32), axis=0) > 0
        row_peak, greedy_id = _best(tl.where(each != each, float("-inf"), each), ids)
        target = tl.load(ints + (first_row + row) * INT_WIDTH + 4)
        tl.store(peaks + row, tl.where(any_nan, float("nan"), row_peak))
        tl.store(chosen + row, tl.where(target >= 0, target, greedy_id))
        tl.store(arrived + row, 0)


@triton.jit(do_not_specialize=["first_row"])
def draw_kernel(
    logits,  # [rows, vocab_size] fp32, adjusted
    floats,  # [rows of the step, 3]: FLOAT_FIELDS
    ints,  # [rows of the step, 5]: INT_FIELDS
    seeds,  # [rows of the step, 2] low and high words
    block_peaks,  # [rows, num_blocks] fp32, from `greedy_kernel`
    peaks,  # [rows] fp32, from `greedy_kernel`
    chosen,  # [rows] int32
    first_row,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """The token of each row that has a temperature and none to score."""
    row = tl.program_id(0)
    record = first_row + row
    logits += row.to(tl.int64) * vocab_size
    block_peaks += row * tl.cdiv(vocab_size, BLOCK)
    floats += record * FLOAT_WIDTH
    ints += record * INT_WIDTH
    temperature = tl.load(floats)
    target = tl.load(ints + 4)
    if (target < 0) & (temperature > 0):
        factor = 1.0 / temperature
        peak = tl.load(peaks + row) * factor
        count = _num_likely(
            logits,
            factor,
            peak,
            tl.load(ints),
            tl.load(floats + 2),
            vocab_size,
            BLOCK,
        )
        limit, equals = _filter(
            logits, block_peaks, factor, peak, count, tl.load(floats + 1), vocab_size, BLOCK
        )
        token = _choose(
            logits,
            block_peaks,
            factor,
            limit,
            equals,
            tl.load(ints + 1),
            tl.load(ints + 2),
            tl.load(seeds + 2 * record).to(tl.uint32, bitcast=True),
            tl.load(seeds + 2 * record + 1).to(tl.uint32, bitcast=True),
            vocab_size,
            BLOCK,
        )
        tl.store(chosen + row, token)


@triton.jit
def _num_likely(logits, factor, peak, top_k, min_p, vocab_size, BLOCK: tl.constexpr):
    """How many tokens min_p and top_k keep."""
    count = tl.where(top_k > 0, tl.minimum(top_k, vocab_size), vocab_size)
    if min_p > 0:
        likely = 0
        for first in range(0, vocab_size, BLOCK):
            token_id, score = _scores(logits, first, factor, vocab_size, BLOCK)
            enough = (tl.exp(score - peak) >= min_p) & (token_id < vocab_size)
            likely += tl.sum(enough.to(tl.int32), axis=0)
        count = tl.minimum(count, likely)
    return count


@triton.jit
def _filter(logits, block_peaks, factor, peak, count, top_p, vocab_size, BLOCK: tl.constexpr):
    """The prefix of `count` tokens, cut where it holds top_p of its mass."""
    limit = tl.full((), 0, tl.uint32)
    equals = vocab_size
    if count < vocab_size:
        limit, above = _find(
            logits, block_peaks, factor, peak, limit, count.to(tl.float32), vocab_size, False, BLOCK
        )
        equals = count - above.to(tl.int32)
    if top_p < 1:
        mass = _mass(logits, block_peaks, factor, peak, limit, equals, vocab_size, BLOCK)
        wanted = top_p * mass
        nucleus, above = _find(
            logits, block_peaks, factor, peak, limit, wanted, vocab_size, True, BLOCK
        )
        bits = tl.where(nucleus >= NEGATIVE, nucleus ^ NEGATIVE, ~nucleus)
        each = tl.exp(bits.to(tl.float32, bitcast=True) - peak)
        most = tl.where(nucleus == limit, equals, vocab_size)
        missing = tl.ceil((wanted - above) / each)
        equals = tl.maximum(tl.minimum(missing, most.to(tl.float32)), 1.0).to(tl.int32)
        limit = nucleus
    return limit, equals


@triton.jit(do_not_specialize=["first_row"])
def report_kernel(
    logits,  # [rows, vocab_size] fp32, raw
    ints,  # [rows of the step, 5]: INT_FIELDS
    chosen,  # [rows] int32
    logprobs,  # [rows] fp32
    top_ids,  # [rows, TOP] int32
    top_logprobs,  # [rows, TOP] fp32
    first_row,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """Log-probabilities of the chosen token and of the most likely ones, where asked for."""
    row = tl.program_id(0)
    num_logprobs = tl.load(ints + (first_row + row) * INT_WIDTH + 3)
    if num_logprobs >= 0:
        _report(
            logits + row.to(tl.int64) * vocab_size,
            tl.minimum(tl.load(chosen + row), vocab_size - 1),  # nobody, of a row of NaN
            num_logprobs,
            logprobs + row,
            top_ids + row * TOP,
            top_logprobs + row * TOP,
            vocab_size,
            BLOCK,
        )


@triton.jit
def _report(logits, token, num_logprobs, logprob, top_ids, top_logprobs, vocab_size,
            BLOCK: tl.constexpr):  # fmt: skip
    """What `report_kernel` says of one row."""
    peak = float("-inf")
    for first in range(0, vocab_size, BLOCK):
        token_id, score = _scores(logits, first, 1.0, vocab_size, BLOCK)
        peak = tl.maximum(peak, tl.max(score, axis=0))
    total = 0.0
    for first in range(0, vocab_size, BLOCK):
        token_id, score = _scores(logits, first, 1.0, vocab_size, BLOCK)
        total += tl.sum(tl.exp(score - peak), axis=0)
    normal = peak + tl.log(total)
    tl.store(logprob, tl.load(logits + token) - normal)
    last = float("inf")
    last_id = -1
    for rank in range(tl.minimum(num_logprobs, vocab_size)):
        best = float("-inf")
        best_id = NOBODY
        for first in range(0, vocab_size, BLOCK):
            token_id, score = _scores(logits, first, 1.0, vocab_size, BLOCK)
            after = (score < last) | ((score == last) & (token_id > last_id))
            other, other_id = _best(tl.where(after, score, float("-inf")), token_id)
            other_id = tl.min(
                tl.where(after & (score == other) & (token_id < vocab_size), token_id, NOBODY),
                axis=0,
            )
            better = (other > best) | (best_id == NOBODY)
            best = tl.where(better, other, best)
            best_id = tl.where(better, other_id, best_id)
        tl.store(top_ids + rank, best_id)
        tl.store(top_logprobs + rank, best - normal)
        last = best
        last_id = best_id


@triton.jit
def _listed(ids, entry, stop, first_id, BLOCK: tl.constexpr):
    """The tokens of entries of a list, and which of them a block holds."""
    token_id = tl.load(ids + entry, mask=entry < stop, other=-1)
    return token_id, (token_id >= first_id) & (token_id < first_id + BLOCK)


@triton.jit(do_not_specialize=["first_row", "capacity"])
def adjust_kernel(
    raw,
    adjusted,
    penalties,  # [3, capacity]: repetition, frequency, presence
    count_starts,  # [capacity + 1] int32, where HAS_COUNTS
    count_ids,
    count_values,
    bias_starts,
    bias_ids,
    bias_values,
    mask_idx,  # [capacity] int32, where HAS_MASKS
    masks,  # [masks, words] int32
    first_row,
    capacity,
    vocab_size,
    HAS_COUNTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block's logits after penalties, bias and mask; of the lists, what falls into the block."""
    row = tl.program_id(0).to(tl.int64)
    record = first_row + tl.program_id(0)
    first_id = tl.program_id(1) * BLOCK
    token_id = first_id + tl.arange(0, BLOCK)
    inside = token_id < vocab_size
    adjusted += row * vocab_size
    value = tl.load(raw + row * vocab_size + token_id, mask=inside)
    if HAS_MASKS:
        mask_of = tl.load(mask_idx + record)
        words = masks + mask_of * ((vocab_size + 31) // 32)
        masked = inside & (tl.zeros_like(token_id) + mask_of >= 0)
        word = tl.load(words + token_id // 32, mask=masked, other=-1)
        allowed = (word >> (token_id % 32)) & 1
        value = tl.where(allowed != 0, value, float("-inf"))
    tl.store(adjusted + token_id, value, mask=inside)
    if HAS_COUNTS:
        tl.debug_barrier()  # the copy is whole before single tokens of it change
        repetition = tl.load(penalties + record)
        frequency = tl.load(penalties + capacity + record)
        presence = tl.load(penalties + 2 * capacity + record)
        stop = tl.load(count_starts + record + 1)
        for first in range(tl.load(count_starts + record), stop, BLOCK):
            entry = first + tl.arange(0, BLOCK)
            listed, own = _listed(count_ids, entry, stop, first_id, BLOCK)
            count = tl.load(count_values + entry, mask=own, other=0.0)
            value = tl.load(adjusted + listed, mask=own, other=0.0)
            value = tl.where(value > 0, value / repetition, value * repetition)
            value = value - frequency * count - presence * (count > 0).to(tl.float32)
            tl.store(adjusted + listed, value, mask=own)
    if HAS_BIAS:
        tl.debug_barrier()
        stop = tl.load(bias_starts + record + 1)
        for first in range(tl.load(bias_starts + record), stop, BLOCK):
            entry = first + tl.arange(0, BLOCK)
            listed, own = _listed(bias_ids, entry, stop, first_id, BLOCK)
            bias = tl.load(bias_values + entry, mask=own, other=0.0)
            value = tl.load(adjusted + listed, mask=own, other=0.0)
            tl.store(adjusted + listed, value + bias, mask=own)
