// How a product reads the rows of X: by the processor and by how much of X a cache holds.
#pragma once

#include <algorithm>
#include <cstdint>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace spgnn {

struct Access {
  bool near;           // no fetching ahead: the processor looks ahead far enough by itself
  std::int64_t block;  // columns of X that are packed and multiplied at a time, if less than all
};

struct Processor {
  bool intel;
  std::int64_t second_level, third_level;  // bytes of the caches; 0 if unknown

  static Processor read() {
    Processor here{false, 0, 0};
#ifdef SPGNN_X86
    __builtin_cpu_init();
    here.intel = __builtin_cpu_is("intel") != 0;
#endif
#ifdef _SC_LEVEL2_CACHE_SIZE
    here.second_level = std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L);
    here.third_level = std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), 0L);
#endif
    return here;
  }
};

struct Shape {
  std::int64_t heads, columns;  // of each head
};

// Measured on Sapphire Rapids: without fetching ahead, products take 0.5 to 0.95 times as long
// where the third-level cache holds X, up to 1.3 times as long where it does not. A Zen 5 gained
// from fetching ahead everywhere, and lost by blocks of columns.
inline Access choose_access(const Processor& processor, std::int64_t x_rows, const Shape& x,
                            std::int64_t bytes_of_one, std::int64_t nonzeros) {
  constexpr std::int64_t kNear = 16;        // X of at most so many second-level caches
  constexpr std::int64_t kLine = 64;        // bytes
  constexpr std::int64_t kFewestLines = 2;  // of a block: each block is a pass over all nonzeros
  constexpr std::int64_t kNarrowest = 8;    // lines of an X that is worth blocks
  constexpr std::int64_t kLeastUses = 24;   // of a row of X, which is packed once
  if (!processor.intel) return {false, x.columns};
  const std::int64_t lines = x.columns * bytes_of_one / kLine;
  if (x_rows > 0 && lines >= kNarrowest && nonzeros / x_rows >= kLeastUses) {
    // The rest of the cache is left to indices, values and Y, which stream through it.
    const std::int64_t fitting = processor.second_level * 7 / 8 / (x_rows * kLine);
    if (fitting >= kFewestLines && 2 * fitting <= lines) {
      return {true, fitting * kLine / bytes_of_one};
    }
  }
  const std::int64_t bytes = x_rows * x.heads * x.columns * bytes_of_one;
  const std::int64_t most = std::min(kNear * processor.second_level, processor.third_level / 4);
  return {bytes <= most, x.columns};
}

}  // namespace spgnn
