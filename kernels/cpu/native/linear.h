// linear: out = x W^T (+ bias), and the fused pair linear + act_mul.
//
// Threads share the tiles of outputs (tiles.h). For many rows, int4 tiles are unpacked to bytes once
// (unpacked.h), with the first block of rows, and used for up to kChunkBlocks blocks.

namespace hasten::HASTEN_ISA {

HASTEN_INLINE F16x activate(Activation kind, F16x x) {
  if (kind == Activation::kSilu) return x / (splat(1.0f) + exp(zero() - x));
  const F16x cube = x * x * x;
  const F16x inner = splat(0.7978845608028654f) * fma(splat(0.044715f), cube, x);
  return splat(0.5f) * x * (splat(1.0f) + tanh(inner));
}

// One tile (with an activation: a pair of tiles) for one block of rows.
struct LinearTile {
  const LinearOp& op;
  const TileKernels& kernels;
  const uint8_t* weight;  // the tile, or the first of the pair
  size_t tile_bytes;
  int tile;
  // The same as it is packed, where it is still to be unpacked to `scratch`.
  const uint8_t* packed = nullptr;
  uint8_t* scratch = nullptr;

  HASTEN_INLINE void add_bias(float* values, int height, int which) const {
    if (op.bias == nullptr) return;
    const float* bias = op.bias + which * kTileCols;
    for (int r = 0; r < height; ++r) {
      for (int half = 0; half < kTileCols; half += kLanes) {
        float* to = values + r * kTileCols + half;
        store(to, load(to) + load(bias + half));
      }
    }
  }

  // The lines that will be written: by then they are here.
  HASTEN_INLINE void fetch_outputs(int block, int height) const {
    const Buffer& b = *op.out.buffer;
    const int column = op.out_begin + tile * kTileCols;
    if (op.out.forms & kPlain) {
      for (int r = 0; r < height; ++r) fetch(plain_row(b, block + r) + column, kTileCols);
    }
    if (op.out.forms & kInt8) {
      const Int8Block to(b, block, height);
      const int group = column / kGroup;
      fetch(to.words + group * (kGroup / 4) * height, kGroup / 4 * height);
      fetch(to.scales + group * height, height);
      fetch(to.sums + group * height, height);
      fetch(to.isums + group * height, height);
      fetch(to.pairs + group * height, height);
    }
  }
  static HASTEN_INLINE void fetch(const void* from, int words) {
    for (int i = 0; i < words; i += kLanes) {
      __builtin_prefetch(static_cast<const uint8_t*>(from) + 4 * i, 1);
    }
  }

  HASTEN_INLINE void multiply(const TileInput& x, int height, int which, float* values) const {
    const int groups = op.weight.groups();
    const size_t offset = tile_bytes * static_cast<size_t>(which);
    if (packed == nullptr) {
      kernels.of[height - 1](x, weight + offset, groups, values);
      return;
    }
    static constexpr FirstBlockKernels first[] = {first_block_kernels<true>(),
                                                  first_block_kernels<false>()};
    first[static_cast<int>(op.weight.scales)].of[height - 1](
        x, packed + op.weight.tile_bytes() * static_cast<size_t>(which), groups, scratch + offset,
        values);
  }

  void run(const TileInput& x, int block, int height) const {
    alignas(64) float values[2][kTallTile * kTileCols];
    fetch_outputs(block, height);
    multiply(x, height, 0, values[0]);
    if (op.activation == Activation::kNone) {
      add_bias(values[0], height, tile);
    } else {
      TileInput again = x;
      if (again.weight.part > 0) again.weight.from += op.weight.tile_bytes();
      again.keys = {};  // they are on their way
      multiply(again, height, 1, values[1]);
      add_bias(values[0], height, 2 * tile);
      add_bias(values[1], height, 2 * tile + 1);
      for (int i = 0; i < height * kTileCols; i += kLanes) {
        store(values[0] + i, activate(op.activation, load(values[0] + i)) * load(values[1] + i));
      }
    }
    const int outputs = op.activation == Activation::kNone ? op.weight.rows : op.weight.rows / 2;
    const int left = outputs - tile * kTileCols;
    const int column = op.out_begin + tile * kTileCols;
    const int count = left < kTileCols ? left : kTileCols;
    if (op.adds) return add_out(values[0], block, height, column, count);
    if (op.out.forms == kPlain && count == kTileCols) return copy_out(values[0], block, height, column);
    for (int r = 0; r < height; ++r) {
      emit_at(op.out, {block, height, r}, column, values[0] + r * kTileCols, count);
    }
  }

  HASTEN_INLINE void add_out(const float* values, int block, int height, int column,
                             int count) const {
    for (int r = 0; r < height; ++r, values += kTileCols) {
      float* to = plain_row(*op.out.buffer, block + r) + column;
      for_vectors(count, [&](int i, int lanes) {
        store_upto(to + i, load_upto(to + i, lanes) + load(values + i), lanes);
      });
    }
  }

  HASTEN_INLINE void copy_out(const float* values, int block, int height, int column) const {
    const Buffer& b = *op.out.buffer;
    for (int r = 0; r < height; ++r) {
      float* to = plain_row(b, block + r) + column;
      store(to, load(values + r * kTileCols));
      store(to + kLanes, load(values + r * kTileCols + kLanes));
    }
  }
};

// How one thread goes about one op: the tiles as they are packed, or unpacked first.
class LinearRun {
 public:
  LinearRun(const LinearOp& op, const Share& share)
      : op_(op),
        share_(share),
        height_(tile_height(share.num_rows)),
        per_output_(op.activation == Activation::kNone ? 1 : 2),
        tiles_(op.weight.tiles() / per_output_),
        packed_bytes_(op.weight.tile_bytes()),
        is_fp8_(op.weight.format == WeightFormat::kFp8),
        unpacked_bytes_(is_fp8_ ? op.weight.unpacked_fp8_bytes()
                                : ManyRows::kStride * static_cast<size_t>(op.weight.groups())),
        unpacks_(is_fp8_ || (op.weight.format == WeightFormat::kInt4 &&
                             share.num_rows - share.first_row > kUnpackRows &&
                             per_output_ * unpacked_bytes_ <= kScratchBytes)) {}

  void run() const {
    const int num_rows = share_.num_rows - share_.first_row;
    const int chunk_rows = kChunkBlocks * height_;
    const int chunks = round_up(num_rows, chunk_rows) / chunk_rows;
    const int parts = 4 * share_.num_threads;
    const int grain = chunks > 1 ? 1 : round_up(tiles_, parts) / parts;
    int begin = 0, end = 0;
    Stretches stretches(share_, tiles_ * chunks, grain);
    while (stretches.claim(begin, end)) {
      for (int task = begin; task < end; ++task) {
        const int first = share_.first_row + task / tiles_ * chunk_rows;
        const int last = first + chunk_rows;
        run_tile(task % tiles_, first, last < share_.num_rows ? last : share_.num_rows);
      }
    }
  }

 private:
  static constexpr size_t kLead = 6144;
  static constexpr int kChunkBlocks = 64;  // blocks of rows of a task, when there are more

  void run_tile(int tile, int first, int last) const {
    const size_t bytes = packed_bytes_ * static_cast<size_t>(per_output_);
    const uint8_t* packed = op_.weight.data + bytes * static_cast<size_t>(tile);
    const int blocks = round_up(last - first, height_) / height_;
    const int groups = op_.weight.groups();
    LinearTile job = unpacks_ ? unpacked_tile(packed, tile)
                              : LinearTile{op_, tile_kernels(op_.weight), packed, packed_bytes_,
                                           tile};
    for (int i = 0; i < blocks; ++i) {
      const int block = first + i * height_;
      const int height = last - block < height_ ? last - block : height_;
      TileInput x = tile_input(*op_.x, op_.weight.format, block, height);
      if (tile + 1 < tiles_) x.weight = weight_ahead(packed, i, blocks);
      x.keys = keys_ahead(groups);
      job.run(x, block, height);
      job.packed = nullptr;
    }
  }

  // What will be read after this tile, or after each of a pair. For many blocks of rows, a part of
  // the next tile; for one or two, what comes kLead bytes later, as the processor's own look-ahead
  // ends with a page. Few rows may use weights as fast as memory gives them (fetch_trial.h).
  Ahead weight_ahead(const uint8_t* packed, int block, int blocks) const {
    if (!share_.fetches_weights) return {};
    if (blocks <= 2) return Ahead::of(packed + kLead, packed_bytes_, op_.weight.groups());
    const uint8_t* next = packed + packed_bytes_ * static_cast<size_t>(per_output_);
    const size_t part = packed_bytes_ / static_cast<size_t>(blocks);
    return Ahead::of(next + part * static_cast<size_t>(block), part, op_.weight.groups());
  }

  Ahead keys_ahead(int groups) const {
    size_t bytes = 0;
    const uint8_t* from = share_.ahead == nullptr ? nullptr : share_.ahead->take(bytes);
    return from == nullptr ? Ahead{} : Ahead::of(from, bytes, groups);
  }

  LinearTile unpacked_tile(const uint8_t* packed, int tile) const {
    if (is_fp8_) {
      for (int i = 0; i < per_output_; ++i) {
        unpack_fp8_tile(op_.weight, packed + packed_bytes_ * static_cast<size_t>(i),
                        share_.scratch + unpacked_bytes_ * static_cast<size_t>(i));
      }
      return {op_, tile_kernels(op_.weight), share_.scratch, unpacked_bytes_, tile};
    }
    static constexpr TileKernels kernels = many_rows_kernels();
    return {op_, kernels, share_.scratch, unpacked_bytes_, tile, packed, share_.scratch};
  }

  const LinearOp& op_;
  const Share& share_;
  const int height_;      // of blocks of rows
  const int per_output_;  // tiles: two with an activation
  const int tiles_;       // of the output
  const size_t packed_bytes_;
  const bool is_fp8_;
  const size_t unpacked_bytes_;
  const bool unpacks_;
};

inline void linear(const LinearOp& op, const Step&, const Share& share) {
  LinearRun(op, share).run();
}

}  // namespace hasten::HASTEN_ISA
