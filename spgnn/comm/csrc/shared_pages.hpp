#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <utility>

namespace spgnn {

// Memory that other processes of this machine map as well. It has no name in any file system, so
// it is gone with the last process that has it, however that ends.
class SharedPages {
 public:
  SharedPages() = default;

  // Of this process. Pages take memory once they are written; the length only has to be enough.
  static SharedPages make(std::size_t length) {
    const int file = memfd_create("spgnn", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(length)) != 0) {
      if (file >= 0) close(file);
      return {};
    }
    return SharedPages(file, length);
  }

  // Of another process, in which the file has that number. Empty if the system does not allow it.
  static SharedPages of(long process, int number, std::size_t length) {
    const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    return file < 0 ? SharedPages() : SharedPages(file, length);
  }

  SharedPages(SharedPages&& other) noexcept { *this = std::move(other); }
  SharedPages& operator=(SharedPages&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(data_, other.data_);
    std::swap(length_, other.length_);
    return *this;
  }
  ~SharedPages() {
    if (data_ != nullptr) munmap(data_, length_);
    if (file_ >= 0) close(file_);
  }

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  int file() const { return file_; }

  // Let the system have the memory of what nobody will read again.
  void give_back(std::size_t first, std::size_t length) {
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
              static_cast<off_t>(length));
  }

 private:
  SharedPages(int file, std::size_t length) : file_(file), length_(length) {
    void* data = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (data != MAP_FAILED) data_ = data;
  }

  int file_ = -1;
  void* data_ = nullptr;
  std::size_t length_ = 0;
};

}  // namespace spgnn
