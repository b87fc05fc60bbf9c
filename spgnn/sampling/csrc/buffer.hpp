// Memory that is not filled before it is written.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "recycled.hpp"

namespace spgnn {

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

}  // namespace spgnn
