// Memory that is not filled before it is written.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace spgnn {

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t size) { resize(size); }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  // Keeps what there is.
  void resize(std::int64_t size) {
    auto* moved = static_cast<T*>(std::realloc(data_, sizeof(T) * (size > 0 ? size : 1)));
    if (!moved) throw std::bad_alloc();
    data_ = moved;
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
};

}  // namespace spgnn
