// Asking for memory before it is needed.
#pragma once

#include "types.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kCacheLine = 64;

constexpr int lines_of(std::int64_t bytes) {
  return static_cast<int>((bytes + kCacheLine - 1) / kCacheLine);
}

inline void prefetch_lines(const void* p, int lines) {
  for (int i = 0; i < lines; ++i) {
    __builtin_prefetch(static_cast<const char*>(p) + i * kCacheLine);
  }
}

// A place in an array of indices of either width, which may lie beyond its end.
class IndexStream {
 public:
  IndexStream() = default;
  template <class Index>
  IndexStream(const Index* indices, std::int64_t from)
      : address_(reinterpret_cast<std::uintptr_t>(indices) + from * sizeof(Index)),
        bytes_(sizeof(Index)) {}

  void prefetch(std::int64_t e) const {
    // Fetching never faults, but a pointer past an array must not even be computed.
    __builtin_prefetch(reinterpret_cast<const void*>(  // NOLINT(performance-no-int-to-ptr)
        address_ + static_cast<std::uintptr_t>(e) * bytes_));
  }

 private:
  std::uintptr_t address_ = 0;
  std::uintptr_t bytes_ = 0;
};

}  // namespace spgnn::SPGNN_ISA
