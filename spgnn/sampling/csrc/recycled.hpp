// Memory of arrays that were freed, for the next ones: a batch's arrays are as large as those of
// the batch before. From the system every page would be a fault, and be filled with zeros: a
// quarter of the time of a sample.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace spgnn {

class Recycled {
 public:
  // Smaller ones are the allocator's.
  static constexpr std::uint64_t kLeast = std::uint64_t{1} << 15;

  // What an array of so many bytes is given: at most an eighth more.
  static std::uint64_t capacity(std::uint64_t bytes) {
    if (bytes < kLeast) return bytes > 0 ? bytes : 1;
    const std::uint64_t step = std::bit_floor(bytes) / kSteps;
    return (bytes + step - 1) / step * step;
  }
  // `capacity` is one.
  static void* take(std::uint64_t capacity) {
    void* found = capacity < kLeast ? nullptr : of_all().kept(capacity);
    if (!found) found = std::malloc(capacity);
    if (!found) throw std::bad_alloc();
    return found;
  }
  static void give(void* memory, std::uint64_t capacity) noexcept {
    if (capacity < kLeast || !of_all().keep(memory, capacity)) std::free(memory);
  }

 private:
  static constexpr std::uint64_t kSteps = 8;  // sizes of an octave
  static constexpr std::uint64_t kMost = std::uint64_t{64} << 20;

  struct Piece {
    void* memory;
    std::uint64_t capacity;
  };

  // Never destroyed: arrays may outlive whatever the end of a process destroys.
  static Recycled& of_all() {
    static auto* all = new Recycled;
    return *all;
  }

  // Who comes while another thread is here, or was when this process was forked, goes without.
  void* kept(std::uint64_t capacity) {
    const std::unique_lock locked(lock_, std::try_to_lock);
    if (!locked) return nullptr;
    // The last ones first: they may still be in a cache.
    for (auto piece = pieces_.rbegin(); piece != pieces_.rend(); ++piece) {
      if (piece->capacity != capacity) continue;
      void* memory = piece->memory;
      pieces_.erase(std::next(piece).base());
      bytes_ -= capacity;
      return memory;
    }
    return nullptr;
  }

  // The oldest ones make room for it.
  bool keep(void* memory, std::uint64_t capacity) noexcept {
    const std::unique_lock locked(lock_, std::try_to_lock);
    if (!locked || capacity > kMost) return false;
    std::size_t gone = 0;
    for (; bytes_ + capacity > kMost; ++gone) {
      std::free(pieces_[gone].memory);
      bytes_ -= pieces_[gone].capacity;
    }
    pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<std::ptrdiff_t>(gone));
    try {
      pieces_.push_back({memory, capacity});
    } catch (const std::bad_alloc&) {
      return false;
    }
    bytes_ += capacity;
    return true;
  }

  std::mutex lock_;
  std::vector<Piece> pieces_;
  std::uint64_t bytes_ = 0;
};

}  // namespace spgnn
