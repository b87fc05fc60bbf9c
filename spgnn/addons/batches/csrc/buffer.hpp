// Memory and threads of samplers.
#pragma once

#include "parallel.hpp"

namespace spgnn {

// Freed arrays, for the next ones: a batch's are as large as those of the batch before, and pages
// of the system are faults, and filled with zeros: a quarter of the time of a sample.

class Recycled {
 public:
  // Smaller ones are the allocator's.
  static constexpr u64 kLeast = u64{1} << 15;

  // What an array of so many bytes is given: at most an eighth more.
  static u64 capacity(u64 bytes) {
    if (bytes < kLeast) return bytes > 0 ? bytes : 1;
    const u64 step = std::bit_floor(bytes) / kSteps;
    return (bytes + step - 1) / step * step;
  }
  // `capacity` is one.
  static void* take(u64 capacity) {
    void* found = capacity < kLeast ? nullptr : of_all().kept(capacity);
    if (!found) found = std::malloc(capacity);
    if (!found) throw std::bad_alloc();
    return found;
  }
  static void give(void* memory, u64 capacity) noexcept {
    if (capacity < kLeast || !of_all().keep(memory, capacity)) std::free(memory);
  }

 private:
  static constexpr u64 kSteps = 8;  // sizes of an octave
  static constexpr u64 kMost = u64{64} << 20;

  struct Piece {
    void* memory;
    u64 capacity;
  };

  // Never destroyed: arrays may outlive whatever the end of a process destroys.
  static Recycled& of_all() {
    static auto* all = new Recycled;
    return *all;
  }

  // Who comes while another thread is here, or was when this process was forked, goes without.
  void* kept(u64 capacity) {
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
  bool keep(void* memory, u64 capacity) noexcept {
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
    } catch (const std::bad_alloc&) { return false; }
    bytes_ += capacity;
    return true;
  }

  std::mutex lock_;
  std::vector<Piece> pieces_;
  u64 bytes_ = 0;
};

template <class T> class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(i64 size) { resize(size); }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)),
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
  void resize(i64 size) {
    const u64 bytes = sizeof(T) * static_cast<u64>(size);
    if (!data_ || bytes > capacity_) {
      const u64 capacity = Recycled::capacity(bytes);
      auto* moved = static_cast<T*>(Recycled::take(capacity));
      if (data_) {
        std::memcpy(moved, data_, sizeof(T) * static_cast<u64>(size_));
        Recycled::give(data_, capacity_);
      }
      data_ = moved;
      capacity_ = capacity;
    }
    size_ = size;
  }

  T& operator[](i64 i) { return data_[i]; }
  const T& operator[](i64 i) const { return data_[i]; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  i64 size() const { return size_; }

 private:
  T* data_ = nullptr;
  i64 size_ = 0;
  u64 capacity_ = 0;  // in bytes
};

// Things that are kept for the next call, one for each call at the same time.

template <class T> class Pool {
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

  template <class Make> Lease take(const Make& make) {
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

// Tasks on all threads, and what follows them in their order.

// Calls task(i) for every i in [0, tasks) on some threads, and then(i) after it: in order and on
// one thread alone, whose cache keeps what they share; it does tasks while it waits. None may
// throw.
template <class Task, class Then>
void for_each_in_turn(i64 tasks, int threads, const Task& task, const Then& then) {
  if (threads <= 1 || tasks <= 1) {
    for (i64 i = 0; i < tasks; ++i) {
      task(i);
      then(i);
    }
    return;
  }
  std::atomic<i64> next{0};
  const auto done = std::make_unique<std::atomic<bool>[]>(tasks);
  const auto does_one = [&] {
    const i64 i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= tasks) return false;
    task(i);
    done[i].store(true, std::memory_order_release);
    return true;
  };
  for_each_task(threads, threads, [&](i64 thread) {
    if (thread > 0) {
      while (does_one()) {}
      return;
    }
    // What it waits for is being done, by a thread that waits for nothing.
    for (i64 i = 0; i < tasks;) {
      if (done[i].load(std::memory_order_acquire)) {
        then(i++);
      } else if (!does_one()) {
        std::this_thread::yield();
      }
    }
  });
}

}  // namespace spgnn
