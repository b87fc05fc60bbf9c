// Asking for memory before it is needed.
#pragma once

#include "types.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kCacheLine = 64;

constexpr int lines_of(std::int64_t bytes) {
  return static_cast<int>((bytes + kCacheLine - 1) / kCacheLine);
}

// Functions that do nothing but fetch must be inlined: GCC takes them to have no effect, and drops
// calls of them.
[[gnu::always_inline]] inline void prefetch_lines(const void* p, int lines) {
  for (int i = 0; i < lines; ++i) {
    __builtin_prefetch(static_cast<const char*>(p) + i * kCacheLine);
  }
}

// Rows that do not begin at a cache line may reach into one more.
[[gnu::always_inline]] inline void prefetch_last_line(const void* p, std::int64_t bytes) {
  __builtin_prefetch(static_cast<const char*>(p) + bytes - 1);
}

// A place in an array, which may lie beyond its end.
class Stream {
 public:
  Stream() = default;
  template <class Element>
  Stream(const Element* array, std::int64_t from)
      : address_(reinterpret_cast<std::uintptr_t>(array) + from * sizeof(Element)),
        bytes_(sizeof(Element)) {}

  [[gnu::always_inline]] void prefetch(std::int64_t e) const {
    // Fetching never faults, but a pointer past an array must not even be computed.
    __builtin_prefetch(reinterpret_cast<const void*>(  // NOLINT(performance-no-int-to-ptr)
        address_ + static_cast<std::uintptr_t>(e) * bytes_));
  }

 private:
  std::uintptr_t address_ = 0;
  std::uintptr_t bytes_ = 0;
};

}  // namespace spgnn::SPGNN_ISA
