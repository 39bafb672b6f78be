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
def _find(logits, factor, peak, limit, wanted, vocab_size, BY_MASS: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    """The key at which the count, or the mass, of keys >= it first reaches `wanted`.

    Also how much lies strictly above it. Only keys >= `limit` are counted.
    """
    digit = tl.arange(0, 16).to(tl.uint32)
    found = tl.full((1,), 0, tl.uint32)
    shift = tl.full((1,), 28, tl.uint32)
    for _ in range(8):
        candidate = found + (digit << shift)
        above = tl.zeros((16,), tl.float32)
        for first in range(0, vocab_size, BLOCK):
            token_id, score = _scores(logits, first, factor, vocab_size, BLOCK)
            key = _key(score)
            amount = tl.where((key >= limit) & (token_id < vocab_size), 1.0, 0.0)
            if BY_MASS:
                amount = amount * tl.exp(score - peak)
            counted = tl.where(key[None, :] >= candidate[:, None], amount[None, :], 0.0)
            above += tl.sum(counted, axis=1)
        # Amounts fall from digit to digit: the last that reaches what is wanted is the next digit.
        reached = tl.sum((above >= wanted).to(tl.int32), axis=0)
        found += (tl.maximum(reached - 1, 0).to(tl.uint32)) << shift
        shift -= 4
    strictly = 0.0
    for first in range(0, vocab_size, BLOCK):
        token_id, score = _scores(logits, first, factor, vocab_size, BLOCK)
        key = _key(score)
        amount = tl.where((key > found) & (token_id < vocab_size), 1.0, 0.0)
        if BY_MASS:
            amount = amount * tl.exp(score - peak)
        strictly += tl.sum(amount, axis=0)
    return tl.max(found, axis=0), strictly


@triton.jit
def _mass(logits, factor, peak, limit, equals, vocab_size, BLOCK: tl.constexpr):
    """The mass of a prefix: keys above `limit`, and the first `equals` of those at it."""
    total = 0.0
    seen = 0
    for first in range(0, vocab_size, BLOCK):
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
def _keep_better(best, best_id, other, other_id):
    """The better of two; of equals the first, whose ids are lower."""
    return tl.where(other > best, other, best), tl.where(other > best, other_id, best_id)


@triton.jit
def _choose(logits, factor, limit, equals, position, sample_idx, low, high, vocab_size,
            BLOCK: tl.constexpr):  # fmt: skip
    """Argmax over a prefix of score plus noise."""
    best = float("-inf")
    best_id = NOBODY
    seen = 0
    for first in range(0, vocab_size, BLOCK):
        token_id, score = _scores(logits, first, factor, vocab_size, BLOCK)
        kept, seen = _within(_key(score), token_id, limit, equals, seen, vocab_size)
        noise = gumbel_noise(token_id, position, sample_idx, low, high)
        noisy = tl.where(kept, score + noise, float("-inf"))
        other, other_id = _best(noisy, token_id)
        best, best_id = _keep_better(best, best_id, other, other_id)
    return best_id


@triton.jit
def greedy_kernel(
    logits,  # [rows, vocab_size] fp32, adjusted
    ints,  # [rows of the step, 5]: INT_FIELDS
    chosen,  # [rows] int32
    peaks,  # [rows] fp32: the largest logit, NaN if one is
    first_row,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """The largest logit of each row, or the token to score."""
    row = tl.program_id(0)
    target = tl.load(ints + (first_row + row) * INT_WIDTH + 4)
    peak = float("-inf")
    greedy_id = NOBODY
    is_nan = 0
    for first in range(0, vocab_size, BLOCK):
        token_id, score = _scores(
            logits + row.to(tl.int64) * vocab_size, first, 1.0, vocab_size, BLOCK
        )
        is_nan += tl.sum((score != score).to(tl.int32), axis=0)
        other, other_id = _best(score, token_id)
        peak, greedy_id = _keep_better(peak, greedy_id, other, other_id)
    tl.store(peaks + row, tl.where(is_nan > 0, float("nan"), peak))
    tl.store(chosen + row, tl.where(target >= 0, target, greedy_id))


@triton.jit
def draw_kernel(
    logits,  # [rows, vocab_size] fp32, adjusted
    floats,  # [rows of the step, 3]: FLOAT_FIELDS
    ints,  # [rows of the step, 5]: INT_FIELDS
    seeds,  # [rows of the step, 2] low and high words
    chosen,  # [rows] int32
    first_row,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """The token of each row that has a temperature and none to score."""
    row = tl.program_id(0)
    record = first_row + row
    logits += row.to(tl.int64) * vocab_size
    floats += record * FLOAT_WIDTH
    ints += record * INT_WIDTH
    temperature = tl.load(floats)
    target = tl.load(ints + 4)
    if (target < 0) & (temperature > 0):
        factor = 1.0 / temperature
        peak = float("-inf")
        for first in range(0, vocab_size, BLOCK):
            _, score = _scores(logits, first, factor, vocab_size, BLOCK)
            peak = tl.maximum(peak, tl.max(score, axis=0))
        count = _num_likely(
            logits,
            factor,
            peak,
            tl.load(ints),
            tl.load(floats + 2),
            vocab_size,
            BLOCK,
        )
        limit, equals = _filter(logits, factor, peak, count, tl.load(floats + 1), vocab_size, BLOCK)
        token = _choose(
            logits,
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
def _filter(logits, factor, peak, count, top_p, vocab_size, BLOCK: tl.constexpr):
    """The prefix of `count` tokens, cut where it holds top_p of its mass."""
    limit = tl.full((), 0, tl.uint32)
    equals = vocab_size
    if count < vocab_size:
        limit, above = _find(
            logits, factor, peak, limit, count.to(tl.float32), vocab_size, False, BLOCK
        )
        equals = count - above.to(tl.int32)
    if top_p < 1:
        wanted = top_p * _mass(logits, factor, peak, limit, equals, vocab_size, BLOCK)
        nucleus, above = _find(logits, factor, peak, limit, wanted, vocab_size, True, BLOCK)
        bits = tl.where(nucleus >= NEGATIVE, nucleus ^ NEGATIVE, ~nucleus)
        each = tl.exp(bits.to(tl.float32, bitcast=True) - peak)
        most = tl.where(nucleus == limit, equals, vocab_size)
        missing = tl.ceil((wanted - above) / each)
        equals = tl.maximum(tl.minimum(missing, most.to(tl.float32)), 1.0).to(tl.int32)
        limit = nucleus
    return limit, equals


@triton.jit
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
            tl.load(chosen + row),
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
    """A copy of the row's logits after penalties, bias and mask."""
    row = tl.program_id(0).to(tl.int64)
    record = first_row + tl.program_id(0)
    mask_of = -1
    if HAS_MASKS:
        mask_of = tl.load(mask_idx + record)
    words = masks + mask_of * ((vocab_size + 31) // 32)
    for first in range(0, vocab_size, BLOCK):
        token_id = first + tl.arange(0, BLOCK)
        inside = token_id < vocab_size
        value = tl.load(raw + row * vocab_size + token_id, mask=inside)
        if HAS_MASKS:
            masked = inside & (tl.zeros_like(token_id) + mask_of >= 0)
            word = tl.load(words + token_id // 32, mask=masked, other=-1)
            allowed = (word >> (token_id % 32)) & 1
            value = tl.where(allowed != 0, value, float("-inf"))
        tl.store(adjusted + row * vocab_size + token_id, value, mask=inside)
    tl.debug_barrier()  # the copy is whole before single tokens of it change
    if HAS_COUNTS:
        repetition = tl.load(penalties + record)
        frequency = tl.load(penalties + capacity + record)
        presence = tl.load(penalties + 2 * capacity + record)
        stop = tl.load(count_starts + record + 1)
        for first in range(tl.load(count_starts + record), stop, BLOCK):
            entry = first + tl.arange(0, BLOCK)
            token_id = tl.load(count_ids + entry, mask=entry < stop, other=0)
            count = tl.load(count_values + entry, mask=entry < stop, other=0.0)
            pointers = adjusted + row * vocab_size + token_id
            value = tl.load(pointers, mask=entry < stop, other=0.0)
            value = tl.where(value > 0, value / repetition, value * repetition)
            value = value - frequency * count - presence * (count > 0).to(tl.float32)
            tl.store(pointers, value, mask=entry < stop)
        tl.debug_barrier()
    if HAS_BIAS:
        stop = tl.load(bias_starts + record + 1)
        for first in range(tl.load(bias_starts + record), stop, BLOCK):
            entry = first + tl.arange(0, BLOCK)
            token_id = tl.load(bias_ids + entry, mask=entry < stop, other=0)
            bias = tl.load(bias_values + entry, mask=entry < stop, other=0.0)
            pointers = adjusted + row * vocab_size + token_id
            value = tl.load(pointers, mask=entry < stop, other=0.0)
            tl.store(pointers, value + bias, mask=entry < stop)
