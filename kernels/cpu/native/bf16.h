// bf16 as bits, one number at a time; kernels have vectors of it in simd.h.
#pragma once

#include <cstdint>
#include <cstring>

namespace hasten {

// To the nearest, ties to even; what is not a number stays so.
inline uint16_t round_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits | 0x400000u) >> 16);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float widen_bf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace hasten
