// Kernels for any processor.
#define HASTEN_ISA portable
#define HASTEN_ISA_NAME "portable"
#include "isa.inc"
