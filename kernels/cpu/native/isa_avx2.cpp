// Kernels for AVX2 with FMA and F16C.
#define HASTEN_ISA avx2
#define HASTEN_ISA_NAME "avx2"
#include "isa.inc"
