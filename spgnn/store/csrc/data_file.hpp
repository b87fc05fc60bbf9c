// Files that are read past the page cache where the file system allows it, and one read of them.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace spgnn {

constexpr std::int64_t kBlock = 4096;           // buffers lie at multiples of it
constexpr std::int64_t kLongestRead = 1 << 18;  // bytes; more gains nothing, and idles the others

struct AlignedBuffer {
  AlignedBuffer() : data(static_cast<char*>(std::aligned_alloc(kBlock, kLongestRead))) {
    if (!data) throw std::bad_alloc();
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer() { std::free(data); }
  char* data;
};

class DataFile {
 public:
  DataFile(const std::string& path, bool direct) {
    if (direct) {
      handle_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
      if (handle_ >= 0 && !find_alignment()) close(std::exchange(handle_, -1));
    }
    if (handle_ < 0) {
      handle_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (handle_ < 0) throw std::runtime_error(std::strerror(errno));
      // Rows are read here and there: what lies behind one is not what is wanted next.
      posix_fadvise(handle_, 0, 0, POSIX_FADV_RANDOM);
    }
  }
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;
  ~DataFile() {
    if (handle_ >= 0) close(handle_);
  }

  int handle() const { return handle_; }

  // Reads begin and end at multiples of it; 1 where the page cache is used.
  std::int64_t alignment() const { return alignment_; }

  std::int64_t size() const {
    struct stat found;
    if (fstat(handle_, &found) != 0) throw std::runtime_error(std::strerror(errno));
    return found.st_size;
  }

 private:
  bool find_alignment() {
    AlignedBuffer buffer;
    for (const std::int64_t tried : {std::int64_t{512}, kBlock}) {
      if (pread(handle_, buffer.data, tried, 0) >= 0 &&
          pread(handle_, buffer.data, tried, tried) >= 0) {
        alignment_ = tried;
        return true;
      }
    }
    return false;
  }

  int handle_ = -1;
  std::int64_t alignment_ = 1;
};

// Bytes [begin, end) of a file, both aligned, of which at least `needed` must be there. The system
// may give fewer than it was asked for, or want to be asked again: whoever asks it hands on each of
// its answers, until the read is done.
class FileRead {
 public:
  FileRead() = default;  // done
  FileRead(const DataFile& file, std::int64_t begin, std::int64_t end, std::int64_t needed)
      : file_(&file), begin_(begin), end_(end), needed_(needed) {}

  bool done() const { return got_ >= needed_; }

  // What to ask for next: so many bytes from `offset` on, `got` bytes into the buffer.
  int handle() const { return file_->handle(); }
  std::int64_t offset() const { return begin_ + got_; }
  std::int64_t bytes() const { return end_ - begin_ - got_; }
  std::int64_t got() const { return got_; }

  // An answer: bytes, or the number of an error below zero.
  void take(std::int64_t answer) {
    if (answer == -EINTR || answer == -EAGAIN) return;
    if (answer < 0) {
      throw std::runtime_error("cannot be read at byte " + std::to_string(offset()) + ": " +
                               std::strerror(static_cast<int>(-answer)));
    }
    got_ += answer;
    // Direct reads go on at aligned places only; they stop elsewhere at the file's end alone.
    if (answer == 0 || (!done() && got_ % file_->alignment() != 0)) {
      throw std::runtime_error("ends at byte " + std::to_string(file_->size()) + ", before byte " +
                               std::to_string(begin_ + needed_) +
                               " that is to be read; it was cut off");
    }
  }

 private:
  const DataFile* file_ = nullptr;
  std::int64_t begin_ = 0, end_ = 0, needed_ = 0, got_ = 0;
};

}  // namespace spgnn
