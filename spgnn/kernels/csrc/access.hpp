// How a product reads the rows of X: by the processor and by how much of X a cache holds.
#pragma once

#include <algorithm>
#include <cstdint>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif
#ifdef SPGNN_X86
#include <cpuid.h>
#endif

namespace spgnn {

struct Access {
  bool near;           // no fetching ahead: the processor looks ahead far enough by itself
  std::int64_t block;  // columns of X that are packed and multiplied at a time, if less than all;
                       // packed rows are always near
};

// Bytes of the third-level cache that a core shares with its neighbours; 0 if unknown. AMD64
// Architecture Programmer's Manual, volume 3, CPUID Fn8000_001D.
inline std::int64_t amd_third_level() {
#ifdef SPGNN_X86
  constexpr unsigned kCacheProperties = 0x8000001d, kThirdLevel = 3;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(kCacheProperties, kThirdLevel, &eax, &ebx, &ecx, &edx)) {
    const std::int64_t line = (ebx & 0xfff) + 1, partitions = (ebx >> 12 & 0x3ff) + 1;
    const std::int64_t ways = (ebx >> 22) + 1, sets = static_cast<std::int64_t>(ecx) + 1;
    if (eax & 0x1f) return line * partitions * ways * sets;
  }
#endif
  return 0;
}

// Kinds that were measured; what suits them does not follow from the sizes of their caches.
enum class Maker { kIntel, kAmdAvx2, kOther };

struct Processor {
  Maker maker;
  std::int64_t second_level, third_level;  // bytes of the caches; 0 if unknown

  static Processor read() {
    Processor here{Maker::kOther, 0, 0};
#ifdef SPGNN_X86
    __builtin_cpu_init();
    if (__builtin_cpu_is("intel")) {
      here.maker = Maker::kIntel;
    } else if (__builtin_cpu_is("amd") && !__builtin_cpu_supports("avx512f")) {
      here.maker = Maker::kAmdAvx2;
    }
#endif
#ifdef _SC_LEVEL2_CACHE_SIZE
    here.second_level = std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L);
    here.third_level = std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), 0L);
#endif
    // The C library adds up the caches of a whole AMD package.
    if (here.maker == Maker::kAmdAvx2) here.third_level = amd_third_level();
    return here;
  }

  // The largest X, in bytes, whose rows are read without fetching ahead.
  std::int64_t largest_near() const {
    switch (maker) {
      case Maker::kIntel:
        return std::min(16 * second_level, third_level / 4);
      case Maker::kAmdAvx2:
        return third_level / 3;
      default:
        return -1;
    }
  }
};

struct Shape {
  std::int64_t heads, columns;  // of each head
};

inline constexpr std::int64_t kLineBytes = 64;  // of a cache

// Cache lines of a row of X in a block, of `lines` in all; 0 if X is not worth blocks. Every row is
// packed once for each block, so it has to be used often.
inline std::int64_t lines_of_block(const Processor& processor, std::int64_t x_rows,
                                   std::int64_t lines, std::int64_t nonzeros) {
  constexpr std::int64_t kNarrowest = 8;    // lines of an X that is worth blocks
  constexpr std::int64_t kFewestLines = 2;  // of a block: each block is a pass over all nonzeros
  if (x_rows == 0 || lines < kNarrowest) return 0;
  const std::int64_t uses = nonzeros / x_rows;
  // The rest of the cache is left to indices, values and Y, which stream through it.
  const auto fitting = [&](std::int64_t bytes) { return bytes / (x_rows * kLineBytes); };
  if (processor.maker == Maker::kIntel && uses >= 24) {
    const std::int64_t most = fitting(processor.second_level * 7 / 8);
    return most >= kFewestLines && 2 * most <= lines ? most : 0;
  }
  if (processor.maker == Maker::kAmdAvx2 && uses >= 12) {
    return fitting(processor.third_level / 2) >= kFewestLines ? kFewestLines : 0;
  }
  return 0;
}

// On Sapphire Rapids products take 0.5 to 0.95 times as long without fetching ahead where the
// third-level cache holds X, up to 1.3 times as long where it does not; on Zen 3 0.6 to 0.95 and
// 1.1 to 1.4 times. Blocks take 0.6 to 0.85 times as long on Zen 3, where they fit the third level
// and no more than two lines are in one. A Zen 5 gained from fetching ahead everywhere, and lost by
// blocks.
inline Access choose_access(const Processor& processor, std::int64_t x_rows, const Shape& x,
                            std::int64_t bytes_of_one, std::int64_t nonzeros) {
  const std::int64_t lines = x.columns * bytes_of_one / kLineBytes;
  if (const auto block = lines_of_block(processor, x_rows, lines, nonzeros)) {
    return {true, block * kLineBytes / bytes_of_one};
  }
  const std::int64_t bytes = x_rows * x.heads * x.columns * bytes_of_one;
  return {bytes <= processor.largest_near(), x.columns};
}

}  // namespace spgnn
