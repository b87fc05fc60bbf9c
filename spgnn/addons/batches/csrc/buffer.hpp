// Memory and threads of samplers.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "parallel.hpp"

namespace spgnn {

// Memory of arrays that were freed, for the next ones: a batch's arrays are as large as those of
// the batch before. From the system every page would be a fault, and be filled with zeros: a
// quarter of the time of a sample.

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

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t size) { resize(size); }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_) Recycled::give(data_, capacity_);
  }

  // Keeps what there is.
  void resize(std::int64_t size) {
    const std::uint64_t bytes = sizeof(T) * static_cast<std::uint64_t>(size);
    if (!data_ || bytes > capacity_) {
      const std::uint64_t capacity = Recycled::capacity(bytes);
      auto* moved = static_cast<T*>(Recycled::take(capacity));
      if (data_) {
        std::memcpy(moved, data_, sizeof(T) * static_cast<std::uint64_t>(size_));
        Recycled::give(data_, capacity_);
      }
      data_ = moved;
      capacity_ = capacity;
    }
    size_ = size;
  }
  void at_least(std::int64_t size) {
    if (size > size_) resize(size);
  }

  T& operator[](std::int64_t i) { return data_[i]; }
  const T& operator[](std::int64_t i) const { return data_[i]; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::int64_t size_ = 0;
  std::uint64_t capacity_ = 0;  // in bytes
};

// Things that are kept for the next call, one for each call at the same time.

template <class T>
class Pool {
 public:
  // Borrowed until it goes out of scope.
  class Lease {
   public:
    Lease(Pool& pool, std::unique_ptr<T> thing) : pool_(pool), thing_(std::move(thing)) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
      std::scoped_lock locked(pool_.lock_);
      pool_.free_.push_back(std::move(thing_));
    }
    T& operator*() const { return *thing_; }

   private:
    Pool& pool_;
    std::unique_ptr<T> thing_;
  };

  template <class Make>
  Lease take(const Make& make) {
    std::unique_ptr<T> thing;
    {
      std::scoped_lock locked(lock_);
      if (!free_.empty()) {
        thing = std::move(free_.back());
        free_.pop_back();
      }
    }
    return Lease(*this, thing ? std::move(thing) : make());
  }

 private:
  std::mutex lock_;
  std::vector<std::unique_ptr<T>> free_;
};

// Memory that is read after some more work.

// Into the second level of the cache: only some ten lines can be on their way to the first one, and
// who asks for more waits.
[[gnu::always_inline]] inline void prefetch_soon(const void* line) {
  __builtin_prefetch(line, 0, 2);
}

// Tasks on all threads, and what follows them in their order.

// Calls task(i) once for every i in [0, tasks) on some threads, in any order, and then(i) after it:
// in order, and on one thread alone, whose cache keeps what they share. That thread does tasks as
// well while the next one in order is not done. Neither may throw.
template <class Task, class Then>
void for_each_in_turn(std::int64_t tasks, int threads, const Task& task, const Then& then) {
  if (threads <= 1 || tasks <= 1) {
    for (std::int64_t i = 0; i < tasks; ++i) {
      task(i);
      then(i);
    }
    return;
  }
  std::atomic<std::int64_t> next{0};
  const auto done = std::make_unique<std::atomic<bool>[]>(tasks);
  const auto does_one = [&] {
    const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= tasks) return false;
    task(i);
    done[i].store(true, std::memory_order_release);
    return true;
  };
  for_each_task(threads, threads, [&](std::int64_t thread) {
    if (thread > 0) {
      while (does_one()) {
      }
      return;
    }
    // What it waits for is being done, by a thread that waits for nothing.
    for (std::int64_t i = 0; i < tasks;) {
      if (done[i].load(std::memory_order_acquire)) {
        then(i++);
      } else if (!does_one()) {
        std::this_thread::yield();
      }
    }
  });
}

}  // namespace spgnn
