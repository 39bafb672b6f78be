// Kernels for AVX-512 with VNNI and BF16.
#define HASTEN_ISA avx512
#define HASTEN_ISA_NAME "avx512"
#include "isa.inc"
