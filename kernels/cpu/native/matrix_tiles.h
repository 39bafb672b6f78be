// The matrix unit of AMX: registers of up to 16 rows of 64 bytes, and products of them.
//
// Register numbers are template arguments, as instructions hold them. The compiler knows nothing of
// these registers; every access to memory through them says so. Format: Intel 64 and IA-32
// Architectures Software Developer's Manual, "Intel AMX instructions".

namespace hasten::HASTEN_ISA {

constexpr int kMatrixRows = 16;
constexpr int kMatrixRegisters = 8;

// What every register holds: rows, and bytes of a row. Loading it clears all registers.
class MatrixShapes {
 public:
  template <int T>
  HASTEN_INLINE void set(int rows, int row_bytes) {
    static_assert(T < kMatrixRegisters);
    rows_[T] = static_cast<uint8_t>(rows);
    row_bytes_[T] = static_cast<uint16_t>(row_bytes);
  }
  HASTEN_INLINE void load() const { asm volatile("ldtilecfg %0" : : "m"(*this) : "memory"); }

 private:
  uint8_t palette_ = 1;
  uint8_t start_row_ = 0;
  uint8_t reserved_[14] = {};
  uint16_t row_bytes_[16] = {};
  uint8_t rows_[16] = {};
};
static_assert(sizeof(MatrixShapes) == 64);

// While it lives, the unit may be used; afterwards the system need not save its registers.
struct MatrixUse {
  MatrixUse() = default;
  MatrixUse(const MatrixUse&) = delete;
  MatrixUse& operator=(const MatrixUse&) = delete;
  ~MatrixUse() { asm volatile("tilerelease"); }
};

template <int T>
HASTEN_INLINE void matrix_clear() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
// Rows begin `stride` bytes apart.
template <int T>
HASTEN_INLINE void matrix_load(const void* from, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
HASTEN_INLINE void matrix_store(void* to, size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}
// c[m][n] += sum over k of a[m][k] b[k][n]: bfloat16 in pairs along k, which in `b` lie side by side.
template <int C, int A, int B>
HASTEN_INLINE void matrix_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

}  // namespace hasten::HASTEN_ISA
