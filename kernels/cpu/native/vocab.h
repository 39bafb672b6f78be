// Passes over a row of logits (VocabKernels in ops.h): maxima, masses, candidates, Gumbel noise.
//
// Noise: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3,
// 2011), one counter for four tokens.

namespace hasten::HASTEN_ISA {

inline bool largest_logit(const float* x, int count, float* value, int* token) {
  F16x top = splat(-__builtin_inff());
  I16x bits = izero();
  const I16x magnitude = isplat(0x7FFFFFFF);
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const F16x v = load(x + i);
    top = max(top, v);
    bits = imax(bits, as_int(v) & magnitude);
  }
  float best = reduce_max(top);
  bool has_nan = reduce_imax(bits) > 0x7F800000;
  for (; i < count; ++i) {
    has_nan = has_nan || x[i] != x[i];
    best = x[i] > best ? x[i] : best;
  }
  int first = 0;
  while (first < count - 1 && x[first] != best) ++first;
  *value = best;
  *token = first;
  return !has_nan;
}

// f(first token, values, lanes in use) for logits / temperature, sixteen at a time.
template <class F>
HASTEN_INLINE void for_logits(const float* x, int count, float temperature, F&& f) {
  const F16x divisor = splat(temperature);
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) f(i, load(x + i) / divisor, kLanes);
  if (i < count) {
    alignas(64) float rest[kLanes];
    store(rest, splat(-__builtin_inff()));
    std::memcpy(rest, x + i, sizeof(float) * static_cast<size_t>(count - i));
    f(i, load(rest) / divisor, count - i);
  }
}

// Keeps lanes of `a` that are at least `floor`, others become `other`.
HASTEN_INLINE F16x keep_from(F16x test, F16x floor, F16x a, F16x other) {
  // test < floor iff the difference's sign bit is set; -inf - finite is -inf.
  return select_less(as_int(test - floor), izero(), other, a);
}

inline float sum_exp(const float* x, int count, float temperature, float shift, float floor) {
  F16x sum = zero();
  for_logits(x, count, temperature, [&](int, F16x z, int) {
    sum = sum + keep_from(z, splat(floor), exp(z - splat(shift)), zero());
  });
  return reduce_add(sum);
}

inline int collect(const float* x, int count, float temperature, float floor, int32_t* tokens) {
  int found = 0;
  for_logits(x, count, temperature, [&](int first, F16x z, int lanes) {
    if (reduce_max(z) < floor) return;
    alignas(64) float values[kLanes];
    store(values, z);
    for (int i = 0; i < lanes; ++i) {
      if (values[i] >= floor) tokens[found++] = first + i;
    }
  });
  return found;
}

struct Philox {
  I16x word[4];
};

HASTEN_INLINE Philox philox(I16x c0, I16x c1, I16x c2, I16x c3, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    I16x high0, low0, high1, low1;
    multiply_wide(c0, isplat(static_cast<int32_t>(0xD2511F53u)), high0, low0);
    multiply_wide(c2, isplat(static_cast<int32_t>(0xCD9E8D57u)), high1, low1);
    c0 = high1 ^ c1 ^ isplat(static_cast<int32_t>(key0));
    c1 = low1;
    c2 = high0 ^ c3 ^ isplat(static_cast<int32_t>(key1));
    c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

HASTEN_INLINE F16x uint_plus_half(I16x x) {
  const F16x high = to_float(shift_right<16>(x));
  const F16x low = to_float(x & isplat(0xFFFF)) + splat(0.5f);
  return fma(high, splat(65536.0f), low);
}

// -log(-log((x + 0.5) / 2^32)) without losing the digits of a uniform close to 1.
HASTEN_INLINE F16x gumbel(I16x x) {
  const F16x unit = splat(2.3283064365386963e-10f);  // 2^-32
  const F16x below = log(uint_plus_half(x) * unit);
  const F16x rest = uint_plus_half(x ^ isplat(-1)) * unit;  // 1 - u
  const F16x w = splat(1.0f) - rest;
  const F16x above = log(w) + ((splat(1.0f) - w) - rest) / w;
  // The upper half of the uniforms has the sign bit set.
  const F16x log_u = select_less(x, izero(), above, below);
  return zero() - log(zero() - log_u);
}

HASTEN_INLINE Philox noise_words(const NoiseKey& key, int first_counter) {
  return philox(isplat(key.position), isplat(first_counter) + lane_ids(), isplat(key.sample_idx),
                izero(), static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32));
}

inline float noise(const NoiseKey& key, int token) {
  const Philox words = noise_words(key, token / 4);
  alignas(64) float lanes[kLanes];
  store(lanes, gumbel(words.word[token % 4]));
  return lanes[0];
}

// The first token with the largest logit / temperature + noise, of those with a quotient of at least
// `floor`. Most of a vocabulary is too unlikely to win with any noise, or with the noise it has,
// which its words show before any logarithm: results are those of the whole.
inline int noisy_largest(const float* x, int count, int largest_token, float temperature, float floor,
                         const NoiseKey& key) {
  constexpr int kTokens = 4 * kLanes;  // of one round of counters
  const F16x none = splat(-__builtin_inff());
  const I16x sign = isplat(static_cast<int32_t>(0x80000000u));
  F16x top[4] = {none, none, none, none};
  I16x where[4] = {izero(), izero(), izero(), izero()};
  // A score that is reached in any case.
  float reached = x[largest_token] / temperature + noise(key, largest_token);
  for (int first = 0; first < count; first += kTokens) {
    const int left = count - first;
    const float* block = x + first;
    alignas(64) float rest[kTokens];
    if (left < kTokens) {
      for (int i = 0; i < 4; ++i) store(rest + i * kLanes, none);
      std::memcpy(rest, block, sizeof(float) * static_cast<size_t>(left));
      block = rest;
    }
    F16x most = load(block);
    for (int i = 1; i < 4; ++i) most = max(most, load(block + i * kLanes));
    const float missing = reached - reduce_max(most) / temperature;
    if (missing >= kMostNoise) continue;
    const Philox words = noise_words(key, first / 4);
    if (missing >= 0.0f) {
      I16x luckiest = words.word[0] ^ sign;
      for (int j = 1; j < 4; ++j) luckiest = imax(luckiest, words.word[j] ^ sign);
      if (reduce_imax(luckiest) < noise_floors[static_cast<int>(missing * kNoiseSteps)]) continue;
    }
    // Token first + 4 i + j has word j of counter i.
    alignas(64) float logits[4][kLanes];
    for (int i = 0; i < kTokens; ++i) logits[i % 4][i / 4] = block[i];
    for (int j = 0; j < 4; ++j) {
      const F16x z = load(logits[j]) / splat(temperature);
      const F16x score = keep_from(z, splat(floor), z + gumbel(words.word[j]), none);
      // Strictly larger only, so the first of equal scores stays.
      const I16x is_more = as_int(top[j] - score);
      where[j] = as_int(select_less(is_more, izero(), as_float(isplat(first)), as_float(where[j])));
      top[j] = max(top[j], score);
    }
    const float best = reduce_max(max(max(top[0], top[1]), max(top[2], top[3])));
    if (best > reached) reached = best;
  }
  float best = -__builtin_inff();
  int token = count;
  for (int j = 0; j < 4; ++j) {
    alignas(64) float scores[kLanes];
    int32_t firsts[kLanes];
    store(scores, top[j]);
    istore(firsts, where[j]);
    for (int i = 0; i < kLanes; ++i) {
      const int id = firsts[i] + 4 * i + j;
      if (scores[i] > best || (scores[i] == best && id < token)) {
        best = scores[i];
        token = id;
      }
    }
  }
  return token < count ? token : 0;
}

// By words of 32 tokens: most allow all of theirs, inside a text, or none, between values.
inline void copy_allowed(const float* logits, int count, const uint32_t* allowed, float* out) {
  const F16x none = splat(-__builtin_inff());
  for (int first = 0; first < count; first += 32) {
    uint32_t forbidden = ~allowed[first / 32];
    const int left = count - first;
    if (left < 32) {
      for (int i = first; i < count; ++i) out[i] = logits[i];
      forbidden &= (1u << left) - 1;
    } else {
      const bool is_some = forbidden != ~0u;
      store(out + first, is_some ? load(logits + first) : none);
      store(out + first + kLanes, is_some ? load(logits + first + kLanes) : none);
      if (!is_some) continue;
    }
    for (; forbidden != 0; forbidden &= forbidden - 1) {
      out[first + __builtin_ctz(forbidden)] = -__builtin_inff();
    }
  }
}

}  // namespace hasten::HASTEN_ISA
