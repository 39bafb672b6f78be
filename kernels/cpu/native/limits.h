// What a thread can do at most: the loops that machine_limits.cpp times.

namespace hasten::HASTEN_ISA {

#if defined(__AVX512F__)
constexpr int kAccumulators = 12;  // more than the products that are under way at once
// The compiler believes that `a` changes here, so that it neither hoists nor sums products.
HASTEN_INLINE void renew(I16x& a) { asm volatile("" : "+v"(a.v)); }
#elif defined(__AVX2__)
constexpr int kAccumulators = 4;  // of two registers each
HASTEN_INLINE void renew(I16x& a) { asm volatile("" : "+x"(a.lo), "+x"(a.hi)); }
#else
constexpr int kAccumulators = 4;
HASTEN_INLINE void renew(I16x& a) { asm volatile("" : "+m"(a.v)); }
#endif

// `rounds` times kAccumulators products of registers full of bytes; returns multiply-adds.
inline double multiply_bytes(int rounds) {
  I16x w = isplat(0x0F0F0F0F), x = isplat(0x01010101);
  I16x sums[kAccumulators];
  for (I16x& sum : sums) sum = izero();
  for (int i = 0; i < rounds; ++i) {
    renew(w);
    renew(x);
    for (I16x& sum : sums) sum = dot_u4(sum, w, x);
  }
  for (I16x& sum : sums) renew(sum);
  return 4.0 * kLanes * kAccumulators * rounds;
}

// Reads `num_bytes`, a multiple of 256, from memory into registers.
inline void read_bytes(const uint8_t* data, size_t num_bytes) {
  I16x sums[4] = {izero(), izero(), izero(), izero()};
  for (size_t at = 0; at < num_bytes; at += 256) {
    for (int i = 0; i < 4; ++i) sums[i] = sums[i] + iload(data + at + 64 * static_cast<size_t>(i));
  }
  for (I16x& sum : sums) renew(sum);
}

}  // namespace hasten::HASTEN_ISA
