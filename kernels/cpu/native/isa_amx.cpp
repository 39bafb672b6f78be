// Kernels for AVX-512 whose attention computes in the matrix unit of AMX.
#define HASTEN_ISA amx
#define HASTEN_MATRIX_UNIT
#include "kernels.inc"

namespace hasten {
namespace avx512 {
extern const KernelTable kTable;
}
namespace amx {

extern const KernelTable kTable;
const KernelTable kTable = [] {
  KernelTable table = avx512::kTable;
  table.name = "amx";
  table.paged_attention = paged_attention;
  return table;
}();

}  // namespace amx
}  // namespace hasten
