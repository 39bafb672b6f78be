// Vectors of 16 lanes, the one width that all kernels are written in.
//
// Included once per instruction set, inside that set's namespace (HASTEN_ISA): one zmm register on
// AVX-512, two ymm registers on AVX2, an array that the compiler lowers as it can elsewhere. No
// standard library templates here or in the kernels: their code would be shared between the sets.

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace hasten::HASTEN_ISA {

#define HASTEN_INLINE inline __attribute__((always_inline))

// While it lives, denormal numbers are zero, as operands and as results: a processor takes a hundred
// times as long over each. Elsewhere than on x86 they stay.
class NoDenormals {
 public:
  NoDenormals(const NoDenormals&) = delete;
  NoDenormals& operator=(const NoDenormals&) = delete;
#if defined(__SSE__)
  NoDenormals() : control_(_mm_getcsr()) { _mm_setcsr(control_ | 0x8040); }
  ~NoDenormals() { _mm_setcsr(control_); }

 private:
  unsigned control_;
#else
  NoDenormals() {}
#endif
};

constexpr int kLanes = 16;
constexpr int kUnpackRows = 12;  // from more rows on, int4 weights are unpacked first (unpacked.h)

#if defined(__AVX512F__)

// Rows of a register tile: 4 to 6 for many rows, as its two accumulators of integers and two of
// floats for each row stay in registers; for few 8, which spills but goes over the weights once
// instead of twice (8 rows: 8 % faster; 32 rows: 4 % slower).
constexpr int kShortTile = 4;
constexpr int kRowTile = 6;
constexpr int kTallTile = 8;
constexpr int kQueryTile = 6;  // of attention: 6 x 4 accumulators, 4 operands

struct F16x {
  __m512 v;
};
struct I16x {
  __m512i v;
};

HASTEN_INLINE F16x zero() { return {_mm512_setzero_ps()}; }
HASTEN_INLINE F16x splat(float x) { return {_mm512_set1_ps(x)}; }
HASTEN_INLINE F16x load(const float* p) { return {_mm512_loadu_ps(p)}; }
HASTEN_INLINE void store(float* p, F16x a) { _mm512_storeu_ps(p, a.v); }
HASTEN_INLINE F16x operator+(F16x a, F16x b) { return {_mm512_add_ps(a.v, b.v)}; }
HASTEN_INLINE F16x operator-(F16x a, F16x b) { return {_mm512_sub_ps(a.v, b.v)}; }
HASTEN_INLINE F16x operator*(F16x a, F16x b) { return {_mm512_mul_ps(a.v, b.v)}; }
HASTEN_INLINE F16x operator/(F16x a, F16x b) { return {_mm512_div_ps(a.v, b.v)}; }
HASTEN_INLINE F16x fma(F16x a, F16x b, F16x c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
HASTEN_INLINE F16x max(F16x a, F16x b) { return {_mm512_max_ps(a.v, b.v)}; }
HASTEN_INLINE F16x min(F16x a, F16x b) { return {_mm512_min_ps(a.v, b.v)}; }
HASTEN_INLINE F16x round(F16x a) { return {_mm512_roundscale_ps(a.v, 8)}; }
HASTEN_INLINE F16x scale_pow2(F16x a, F16x n) { return {_mm512_scalef_ps(a.v, n.v)}; }

HASTEN_INLINE I16x izero() { return {_mm512_setzero_si512()}; }
HASTEN_INLINE I16x isplat(int32_t x) { return {_mm512_set1_epi32(x)}; }
HASTEN_INLINE I16x iload(const void* p) { return {_mm512_loadu_si512(p)}; }
HASTEN_INLINE void istore(void* p, I16x a) { _mm512_storeu_si512(p, a.v); }
HASTEN_INLINE I16x operator+(I16x a, I16x b) { return {_mm512_add_epi32(a.v, b.v)}; }
HASTEN_INLINE I16x operator&(I16x a, I16x b) { return {_mm512_and_si512(a.v, b.v)}; }
HASTEN_INLINE I16x operator|(I16x a, I16x b) { return {_mm512_or_si512(a.v, b.v)}; }
HASTEN_INLINE I16x operator^(I16x a, I16x b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int N>
HASTEN_INLINE I16x shift_right(I16x a) { return {_mm512_srli_epi32(a.v, N)}; }
template <int N>
HASTEN_INLINE I16x shift_left(I16x a) { return {_mm512_slli_epi32(a.v, N)}; }
HASTEN_INLINE F16x to_float(I16x a) { return {_mm512_cvtepi32_ps(a.v)}; }
HASTEN_INLINE I16x to_int(F16x a) { return {_mm512_cvtps_epi32(a.v)}; }
HASTEN_INLINE F16x as_float(I16x a) { return {_mm512_castsi512_ps(a.v)}; }
HASTEN_INLINE I16x as_int(F16x a) { return {_mm512_castps_si512(a.v)}; }
HASTEN_INLINE I16x imax(I16x a, I16x b) { return {_mm512_max_epi32(a.v, b.v)}; }
// a < b lane by lane (signed): x where it holds, y elsewhere.
HASTEN_INLINE F16x select_less(I16x a, I16x b, F16x x, F16x y) {
  return {_mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(a.v, b.v), y.v, x.v)};
}
// High and low words of the 32 x 32 bit products.
HASTEN_INLINE void multiply_wide(I16x a, I16x b, I16x& high, I16x& low) {
  const __m512i even = _mm512_mul_epu32(a.v, b.v);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), _mm512_srli_epi64(b.v, 32));
  high.v = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
  low.v = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}

HASTEN_INLINE F16x load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// acc += the sums of products of four unsigned (w, at most 15) and four signed bytes per lane.
HASTEN_INLINE I16x dot_u4(I16x acc, I16x w, I16x x) { return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)}; }
// The same for signed w, stored with its sign bit flipped; starts from `dot_s8_start(sum of x)`.
HASTEN_INLINE I16x dot_s8(I16x acc, I16x w, I16x x) { return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)}; }
HASTEN_INLINE I16x dot_s8_start(int32_t sum) { return {_mm512_set1_epi32(-128 * sum)}; }
// The same for any unsigned and signed bytes.
HASTEN_INLINE I16x dot_bytes(I16x acc, I16x a, I16x b) { return {_mm512_dpbusd_epi32(acc.v, a.v, b.v)}; }
HASTEN_INLINE I16x add_bytes(I16x a, I16x b) { return {_mm512_add_epi8(a.v, b.v)}; }
HASTEN_INLINE I16x isplat_byte(int x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
HASTEN_INLINE I16x operator-(I16x a, I16x b) { return {_mm512_sub_epi32(a.v, b.v)}; }
// acc += products of bf16 pairs, lane by lane.
HASTEN_INLINE F16x dot_bf16(F16x acc, I16x a, I16x b) {
  return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}
HASTEN_INLINE void store_bf16(uint16_t* p, F16x a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v)));
}
HASTEN_INLINE void store_i8(int8_t* p, I16x a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

#else

#if defined(__AVX2__)
constexpr int kShortTile = 2;
constexpr int kRowTile = 2;
constexpr int kTallTile = 2;
constexpr int kQueryTile = 2;
struct F16x {
  __m256 lo, hi;
};
struct I16x {
  __m256i lo, hi;
};
#define HASTEN_LANEWISE(name, type, op) \
  HASTEN_INLINE type name(type a, type b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
HASTEN_LANEWISE(operator+, F16x, _mm256_add_ps)
HASTEN_LANEWISE(operator-, F16x, _mm256_sub_ps)
HASTEN_LANEWISE(operator*, F16x, _mm256_mul_ps)
HASTEN_LANEWISE(operator/, F16x, _mm256_div_ps)
HASTEN_LANEWISE(max, F16x, _mm256_max_ps)
HASTEN_LANEWISE(min, F16x, _mm256_min_ps)
HASTEN_LANEWISE(operator+, I16x, _mm256_add_epi32)
HASTEN_LANEWISE(operator&, I16x, _mm256_and_si256)
HASTEN_LANEWISE(operator|, I16x, _mm256_or_si256)
HASTEN_LANEWISE(operator^, I16x, _mm256_xor_si256)
HASTEN_LANEWISE(imax, I16x, _mm256_max_epi32)
#undef HASTEN_LANEWISE

HASTEN_INLINE F16x zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
HASTEN_INLINE F16x splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
HASTEN_INLINE F16x load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
HASTEN_INLINE void store(float* p, F16x a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
HASTEN_INLINE F16x fma(F16x a, F16x b, F16x c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
HASTEN_INLINE F16x round(F16x a) {
  return {_mm256_round_ps(a.lo, 8), _mm256_round_ps(a.hi, 8)};
}
HASTEN_INLINE I16x izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
HASTEN_INLINE I16x isplat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
HASTEN_INLINE I16x iload(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
HASTEN_INLINE void istore(void* p, I16x a) {
  auto* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, a.lo);
  _mm256_storeu_si256(q + 1, a.hi);
}
template <int N>
HASTEN_INLINE I16x shift_right(I16x a) {
  return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
template <int N>
HASTEN_INLINE I16x shift_left(I16x a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
HASTEN_INLINE F16x to_float(I16x a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
HASTEN_INLINE I16x to_int(F16x a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
HASTEN_INLINE F16x as_float(I16x a) {
  return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
HASTEN_INLINE I16x as_int(F16x a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
HASTEN_INLINE __m256 select_half(__m256i a, __m256i b, __m256 x, __m256 y) {
  return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a)));
}
HASTEN_INLINE F16x select_less(I16x a, I16x b, F16x x, F16x y) {
  return {select_half(a.lo, b.lo, x.lo, y.lo), select_half(a.hi, b.hi, x.hi, y.hi)};
}
HASTEN_INLINE void multiply_half(__m256i a, __m256i b, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(a, b);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
HASTEN_INLINE void multiply_wide(I16x a, I16x b, I16x& high, I16x& low) {
  multiply_half(a.lo, b.lo, high.lo, low.lo);
  multiply_half(a.hi, b.hi, high.hi, low.hi);
}
HASTEN_INLINE F16x load_f16(const uint16_t* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
// Products of unsigned and signed bytes as pairs in 16 bits (no saturation: |w x| <= 128 * 127),
// then in 32: AVX2 has no four-byte dot product.
HASTEN_INLINE __m256i dot_half(__m256i acc, __m256i w, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(w, x);
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
HASTEN_INLINE I16x dot_u4(I16x acc, I16x w, I16x x) {
  return {dot_half(acc.lo, w.lo, x.lo), dot_half(acc.hi, w.hi, x.hi)};
}
HASTEN_INLINE __m256i dot_signed_half(__m256i acc, __m256i w, __m256i x) {
  const __m256i q = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
  return dot_half(acc, _mm256_abs_epi8(q), _mm256_sign_epi8(x, q));
}
HASTEN_INLINE I16x dot_s8(I16x acc, I16x w, I16x x) {
  return {dot_signed_half(acc.lo, w.lo, x.lo), dot_signed_half(acc.hi, w.hi, x.hi)};
}
HASTEN_INLINE I16x dot_s8_start(int32_t) { return izero(); }

#else  // portable

constexpr int kShortTile = 2;
constexpr int kRowTile = 2;
constexpr int kTallTile = 2;
constexpr int kQueryTile = 2;
struct F16x {
  typedef float Array __attribute__((vector_size(64)));
  Array v;
};
struct I16x {
  typedef int32_t Array __attribute__((vector_size(64)));
  Array v;
};
typedef uint32_t U16x __attribute__((vector_size(64)));

HASTEN_INLINE F16x zero() { return {F16x::Array{}}; }
HASTEN_INLINE F16x splat(float x) { return {F16x::Array{} + x}; }
HASTEN_INLINE F16x load(const float* p) {
  F16x a;
  std::memcpy(&a.v, p, sizeof a.v);
  return a;
}
HASTEN_INLINE void store(float* p, F16x a) { std::memcpy(p, &a.v, sizeof a.v); }
HASTEN_INLINE F16x operator+(F16x a, F16x b) { return {a.v + b.v}; }
HASTEN_INLINE F16x operator-(F16x a, F16x b) { return {a.v - b.v}; }
HASTEN_INLINE F16x operator*(F16x a, F16x b) { return {a.v * b.v}; }
HASTEN_INLINE F16x operator/(F16x a, F16x b) { return {a.v / b.v}; }
HASTEN_INLINE F16x fma(F16x a, F16x b, F16x c) { return {a.v * b.v + c.v}; }
HASTEN_INLINE F16x max(F16x a, F16x b) { return {a.v > b.v ? a.v : b.v}; }
HASTEN_INLINE F16x min(F16x a, F16x b) { return {a.v < b.v ? a.v : b.v}; }

HASTEN_INLINE I16x izero() { return {I16x::Array{}}; }
HASTEN_INLINE I16x isplat(int32_t x) { return {I16x::Array{} + x}; }
HASTEN_INLINE I16x iload(const void* p) {
  I16x a;
  std::memcpy(&a.v, p, sizeof a.v);
  return a;
}
HASTEN_INLINE void istore(void* p, I16x a) { std::memcpy(p, &a.v, sizeof a.v); }
HASTEN_INLINE I16x operator+(I16x a, I16x b) {
  return {reinterpret_cast<I16x::Array>(reinterpret_cast<U16x>(a.v) + reinterpret_cast<U16x>(b.v))};
}
HASTEN_INLINE I16x operator&(I16x a, I16x b) { return {a.v & b.v}; }
HASTEN_INLINE I16x operator|(I16x a, I16x b) { return {a.v | b.v}; }
HASTEN_INLINE I16x operator^(I16x a, I16x b) { return {a.v ^ b.v}; }
HASTEN_INLINE I16x imax(I16x a, I16x b) { return {a.v > b.v ? a.v : b.v}; }
template <int N>
HASTEN_INLINE I16x shift_right(I16x a) {
  return {reinterpret_cast<I16x::Array>(reinterpret_cast<U16x>(a.v) >> N)};
}
template <int N>
HASTEN_INLINE I16x shift_left(I16x a) {
  return {reinterpret_cast<I16x::Array>(reinterpret_cast<U16x>(a.v) << N)};
}
HASTEN_INLINE F16x to_float(I16x a) { return {__builtin_convertvector(a.v, F16x::Array)}; }
HASTEN_INLINE F16x as_float(I16x a) { return {reinterpret_cast<F16x::Array>(a.v)}; }
HASTEN_INLINE I16x as_int(F16x a) { return {reinterpret_cast<I16x::Array>(a.v)}; }
// Adding 1.5 * 2^23 leaves the nearest integer (ties to even) in the low mantissa bits; |a| < 2^22.
HASTEN_INLINE I16x to_int(F16x a) { return {as_int(a + splat(12582912.0f)).v - 0x4B400000}; }
HASTEN_INLINE F16x round(F16x a) { return to_float(to_int(a)); }
HASTEN_INLINE F16x select_less(I16x a, I16x b, F16x x, F16x y) { return {a.v < b.v ? x.v : y.v}; }
HASTEN_INLINE void multiply_wide(I16x a, I16x b, I16x& high, I16x& low) {
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t product = static_cast<uint64_t>(static_cast<uint32_t>(a.v[i])) *
                             static_cast<uint32_t>(b.v[i]);
    high.v[i] = static_cast<int32_t>(product >> 32);
    low.v[i] = static_cast<int32_t>(product & 0xFFFFFFFFu);
  }
}
HASTEN_INLINE float half_to_float(uint16_t h) {
  const uint32_t magnitude = h & 0x7FFFu;
  uint32_t bits;
  if (magnitude >= 0x7C00u) {
    bits = 0x7F800000u | (magnitude & 0x3FFu) << 13;
  } else if (magnitude >= 0x400u) {
    bits = (magnitude << 13) + 0x38000000u;
  } else {
    const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24
    std::memcpy(&bits, &value, sizeof bits);
  }
  bits |= static_cast<uint32_t>(h & 0x8000u) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}
HASTEN_INLINE F16x load_f16(const uint16_t* p) {
  F16x a;
  for (int i = 0; i < kLanes; ++i) a.v[i] = half_to_float(p[i]);
  return a;
}
template <int kFlip>
HASTEN_INLINE I16x dot_bytes(I16x acc, I16x w, I16x x) {
  for (int i = 0; i < kLanes; ++i) {
    for (int byte = 0; byte < 32; byte += 8) {
      const int32_t a = (w.v[i] >> byte) & 255;
      const auto b = static_cast<int8_t>((x.v[i] >> byte) & 255);
      acc.v[i] += (a - kFlip) * b;
    }
  }
  return acc;
}
HASTEN_INLINE I16x dot_u4(I16x acc, I16x w, I16x x) { return dot_bytes<0>(acc, w, x); }
HASTEN_INLINE I16x dot_s8(I16x acc, I16x w, I16x x) { return dot_bytes<128>(acc, w, x); }
HASTEN_INLINE I16x dot_s8_start(int32_t) { return izero(); }

#endif  // AVX2 or portable

// n is a whole number in [-300, 300]: two factors reach below the smallest normal number.
HASTEN_INLINE F16x scale_pow2(F16x a, F16x n) {
  const F16x clamped = max(splat(-250.0f), n);
  const I16x whole = to_int(clamped);
  const I16x half = to_int(clamped * splat(0.5f));
  const I16x bias = isplat(127);
  const I16x rest = as_int(as_float(whole + (half ^ isplat(-1)) + isplat(1)));
  return a * as_float(shift_left<23>(half + bias)) * as_float(shift_left<23>(rest + bias));
}
HASTEN_INLINE F16x dot_bf16(F16x acc, I16x a, I16x b) {
  const I16x high = isplat(static_cast<int32_t>(0xFFFF0000u));
  acc = fma(as_float(shift_left<16>(a)), as_float(shift_left<16>(b)), acc);
  return fma(as_float(a & high), as_float(b & high), acc);
}
HASTEN_INLINE void store_bf16(uint16_t* p, F16x a) {
  uint32_t bits[kLanes];
  istore(bits, as_int(a));
  for (int i = 0; i < kLanes; ++i) {
    const bool is_nan = (bits[i] & 0x7FFFFFFFu) > 0x7F800000u;
    const uint32_t rounded = bits[i] + 0x7FFFu + ((bits[i] >> 16) & 1u);
    p[i] = static_cast<uint16_t>((is_nan ? bits[i] | 0x400000u : rounded) >> 16);
  }
}
HASTEN_INLINE void store_i8(int8_t* p, I16x a) {
  int32_t values[kLanes];
  istore(values, a);
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(values[i]);
}

#endif  // AVX-512 or not

// Halves onto halves, always in the same order: a row's result depends on the row alone.
#if defined(__AVX512F__)
HASTEN_INLINE __m256 upper(__m512 a) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
}
HASTEN_INLINE float reduce_add(F16x a) {
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper(a.v));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
HASTEN_INLINE float reduce_max(F16x a) { return _mm512_reduce_max_ps(a.v); }
HASTEN_INLINE int32_t reduce_imax(I16x a) { return _mm512_reduce_max_epi32(a.v); }
HASTEN_INLINE int32_t reduce_iadd(I16x a) { return _mm512_reduce_add_epi32(a.v); }
#else
template <class T, class F>
HASTEN_INLINE T reduce(T (&t)[kLanes], F&& join) {
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) t[i] = join(t[i], t[i + step]);
  }
  return t[0];
}
HASTEN_INLINE float reduce_add(F16x a) {
  float t[kLanes];
  store(t, a);
  return reduce(t, [](float x, float y) { return x + y; });
}
HASTEN_INLINE float reduce_max(F16x a) {
  float t[kLanes];
  store(t, a);
  return reduce(t, [](float x, float y) { return x > y ? x : y; });
}
HASTEN_INLINE int32_t reduce_imax(I16x a) {
  int32_t t[kLanes];
  istore(t, a);
  return reduce(t, [](int32_t x, int32_t y) { return x > y ? x : y; });
}
HASTEN_INLINE int32_t reduce_iadd(I16x a) {
  int32_t t[kLanes];
  istore(t, a);
  return reduce(t, [](int32_t x, int32_t y) { return x + y; });
}
#endif
HASTEN_INLINE I16x lane_ids() {
  static const int32_t ids[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return iload(ids);
}

// e^x; relative error below 2.5e-7, exactly 1 at 0. Minimax polynomial of 2^f on [-1/2, 1/2].
HASTEN_INLINE F16x exp(F16x x) {
  // The constant comes first in min and max because NaN passes only as the second operand.
  const F16x t = min(splat(160.0f), max(splat(-160.0f), x * splat(1.44269504088896341f)));
  const F16x n = round(t);
  const F16x f = t - n;
  F16x p = splat(0.001327647129073739f);
  p = fma(p, f, splat(0.009675541892647743f));
  p = fma(p, f, splat(0.05550713092088699f));
  p = fma(p, f, splat(0.24022120237350464f));
  p = fma(p, f, splat(0.6931469440460205f));
  p = fma(p, f, splat(1.0f));
  return scale_pow2(p, n);
}

// Natural logarithm of positive normal numbers; relative error below 2e-7 of max(1, |log x|).
HASTEN_INLINE F16x log(F16x x) {
  const I16x bits = as_int(x) + isplat(0x3F800000 - 0x3F3504F3);
  const F16x exponent = to_float(shift_right<23>(bits)) - splat(127.0f);
  const F16x mantissa = as_float((bits & isplat(0x007FFFFF)) + isplat(0x3F3504F3));
  const F16x f = mantissa - splat(1.0f);
  F16x p = splat(-0.08064710348844528f);
  p = fma(p, f, splat(0.12917974591255188f));
  p = fma(p, f, splat(-0.13072578608989716f));
  p = fma(p, f, splat(0.14173442125320435f));
  p = fma(p, f, splat(-0.16628916561603546f));
  p = fma(p, f, splat(0.2000269591808319f));
  p = fma(p, f, splat(-0.2500075101852417f));
  p = fma(p, f, splat(0.3333331346511841f));
  p = fma(p, f, splat(-0.4999999701976776f));
  const F16x series = fma(p * f, f, f);
  return fma(exponent, splat(0.693147180559945309f), series);
}

HASTEN_INLINE F16x tanh(F16x x) {
  const F16x limited = min(splat(15.0f), max(splat(-15.0f), x));
  const F16x e = exp(limited + limited);
  return (e - splat(1.0f)) / (e + splat(1.0f));
}

// The last, incomplete vector of a row: `count` values, then zeros.
HASTEN_INLINE F16x load_part(const float* p, int count) {
  alignas(64) float t[kLanes] = {};
  std::memcpy(t, p, sizeof(float) * static_cast<size_t>(count));
  return load(t);
}
HASTEN_INLINE void store_part(float* p, F16x a, int count) {
  alignas(64) float t[kLanes];
  store(t, a);
  std::memcpy(p, t, sizeof(float) * static_cast<size_t>(count));
}

// f(i, count) for every vector of a row: count is 16 but for the last one.
template <class F>
HASTEN_INLINE void for_vectors(int width, F&& f) {
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) f(i, kLanes);
  if (i < width) f(i, width - i);
}
HASTEN_INLINE F16x load_upto(const float* p, int count) {
  return count == kLanes ? load(p) : load_part(p, count);
}
HASTEN_INLINE void store_upto(float* p, F16x a, int count) {
  if (count == kLanes) {
    store(p, a);
  } else {
    store_part(p, a, count);
  }
}

}  // namespace hasten::HASTEN_ISA
