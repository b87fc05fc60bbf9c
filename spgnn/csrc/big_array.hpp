// Zeroed arrays for tables that are read at random: on huge pages where the system has them.
#pragma once

#include <sys/mman.h>

#include "std.hpp"

namespace spgnn {

template <class T> class BigArray {
 public:
  BigArray() = default;
  // Anonymous mapping: the kernel hands out zeroed pages on first touch, so no filling pass.
  explicit BigArray(std::size_t size) : size_(size) {
    if (size == 0) return;
    void* memory =
        mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, bytes(), MADV_HUGEPAGE);
    data_ = static_cast<T*>(memory);
  }
  BigArray(BigArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  BigArray& operator=(BigArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  BigArray(const BigArray&) = delete;
  BigArray& operator=(const BigArray&) = delete;
  ~BigArray() {
    if (data_) munmap(data_, bytes());
  }

  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }

 private:
  std::size_t bytes() const { return size_ * sizeof(T); }

  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace spgnn
