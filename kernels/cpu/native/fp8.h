// e4m3 numbers: a sign, four bits of exponent (bias 7), three of mantissa; no infinity, and the only
// NaN is 0x7F, which nothing here writes.

namespace hasten::HASTEN_ISA {

constexpr float kE4m3Max = 448.0f;

// The nearest code of each lane (ties to even), clamped to +-448, in the low byte.
HASTEN_INLINE I16x encode_e4m3(F16x x) {
  const I16x bits = as_int(min(splat(kE4m3Max), max(splat(-kE4m3Max), x)));
  const I16x magnitude = bits & isplat(0x7FFFFFFF);
  // Above 2^-6: the float's own bits, rounded to three of mantissa, its bias of 127 made 7.
  const I16x is_odd = shift_right<20>(magnitude) & isplat(1);
  const I16x normal = shift_right<20>(magnitude + isplat(0x7FFFF) + is_odd) + isplat(-(120 << 3));
  // Below: steps of 2^-9.
  const I16x subnormal = to_int(as_float(magnitude) * splat(512.0f));
  const I16x code = as_int(select_less(magnitude, isplat(0x3C800000), as_float(subnormal),
                                       as_float(normal)));
  return code | (shift_right<24>(bits) & isplat(0x80));
}

// The number of the code in each lane's low byte, the rest of the lane being zero.
HASTEN_INLINE F16x decode_e4m3(I16x code) {
  const I16x magnitude = code & isplat(0x7F);
  const F16x normal = as_float(shift_left<20>(magnitude) + isplat(120 << 23));
  const F16x subnormal = to_float(magnitude) * splat(1.0f / 512.0f);
  const F16x value = select_less(magnitude, isplat(8), subnormal, normal);
  return as_float(as_int(value) | shift_left<24>(code & isplat(0x80)));
}

// Sixteen pairs of bytes, one pair in each lane.
HASTEN_INLINE I16x load_pairs(const uint8_t* p) {
#if defined(__AVX512F__)
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
#elif defined(__AVX2__)
  const auto* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
#else
  uint16_t pairs[kLanes];
  std::memcpy(pairs, p, sizeof pairs);
  I16x a;
  for (int i = 0; i < kLanes; ++i) a.v[i] = pairs[i];
  return a;
#endif
}

// Sixteen pairs of codes as pairs of bfloat16 numbers, which hold them exactly.
HASTEN_INLINE I16x decode_to_bf16(const uint8_t* p) {
#if defined(__AVX512BW__)
  const __m512i code = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7F));
  const __m512i normal =
      _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
  // 0 to 7 times 2^-9.
  const __m512i subnormals = _mm512_broadcast_i32x4(
      _mm_setr_epi16(0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60));
  const __mmask32 is_subnormal = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
  const __m512i value =
      _mm512_mask_permutexvar_epi16(normal, is_subnormal, magnitude, subnormals);
  const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(code, 8), _mm512_set1_epi16(-0x8000));
  return {_mm512_or_si512(value, sign)};
#else
  const I16x pairs = load_pairs(p);
  const I16x first = as_int(decode_e4m3(pairs & isplat(0xFF)));
  const I16x second = as_int(decode_e4m3(shift_right<8>(pairs)));
  return shift_right<16>(first) | (second & isplat(static_cast<int32_t>(0xFFFF0000u)));
#endif
}

HASTEN_INLINE float from_bf16(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

HASTEN_INLINE uint16_t to_bf16(float value) {
  alignas(64) uint16_t halves[kLanes];
  store_bf16(halves, splat(value));
  return halves[0];
}

}  // namespace hasten::HASTEN_ISA
