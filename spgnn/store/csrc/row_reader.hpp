// Stretches of a file, in any order, read past the page cache where the file system allows it.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "reading_pool.hpp"

namespace spgnn {

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

  // Reads begin and end at multiples of it; 1 where the page cache is used.
  std::int64_t alignment() const { return alignment_; }

  std::int64_t size() const {
    struct stat found;
    if (fstat(handle_, &found) != 0) throw std::runtime_error(std::strerror(errno));
    return found.st_size;
  }

  // Reads [begin, end), both aligned, of which at least `needed` bytes must be there.
  void read(char* buffer, std::int64_t begin, std::int64_t end, std::int64_t needed) const {
    std::int64_t got = 0;
    while (got < needed) {
      const ssize_t now = pread(handle_, buffer + got, end - begin - got, begin + got);
      if (now < 0 && errno == EINTR) continue;
      if (now < 0) {
        throw std::runtime_error("cannot be read at byte " + std::to_string(begin + got) + ": " +
                                 std::strerror(errno));
      }
      got += now;
      // Direct reads go on at aligned places only; they stop elsewhere at the file's end alone.
      if (now == 0 || (got < needed && got % alignment_ != 0)) {
        throw std::runtime_error("ends at byte " + std::to_string(size()) + ", before byte " +
                                 std::to_string(begin + needed) +
                                 " that is to be read; it was cut off");
      }
    }
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

// Bytes [begin, end) of the file, which go to `to`.
struct Stretch {
  std::int64_t begin, end;
  char* to;
};

// Reads stretches: those that lie in or near the same blocks by one read.
class StretchJob : public ReadingJob {
 public:
  // `gap`: so many bytes that nobody asked for are read rather than skipped.
  StretchJob(std::shared_ptr<const DataFile> file, std::vector<Stretch> stretches, std::int64_t gap)
      : file_(std::move(file)), stretches_(std::move(stretches)) {
    const auto before = [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; };
    if (!std::is_sorted(stretches_.begin(), stretches_.end(), before)) {
      std::sort(stretches_.begin(), stretches_.end(), before);
    }
    const std::int64_t unit = file_->alignment();
    for (std::size_t i = 0; i < stretches_.size(); ++i) {
      const std::int64_t begin = stretches_[i].begin / unit * unit;
      const std::int64_t end = (stretches_[i].end + unit - 1) / unit * unit;
      const bool joins = !pieces_.empty() && begin <= pieces_.back().end + gap &&
                         std::max(end, pieces_.back().end) - pieces_.back().begin <= kLongestRead;
      if (joins) {
        pieces_.back().end = std::max(pieces_.back().end, end);
        pieces_.back().last = i + 1;
      } else {
        pieces_.push_back({begin, end, i, i + 1});
      }
    }
    for (const Piece& piece : pieces_) bytes_ += piece.end - piece.begin;
    expect(reads());
  }

  // The same reads, none of which has begun.
  StretchJob(const StretchJob& other)
      : ReadingJob(),
        file_(other.file_),
        stretches_(other.stretches_),
        pieces_(other.pieces_),
        bytes_(other.bytes_) {
    expect(reads());
  }

  // What the disk is asked for.
  std::int64_t bytes() const { return bytes_; }
  std::int64_t reads() const { return static_cast<std::int64_t>(pieces_.size()); }

 private:
  struct Piece {
    std::int64_t begin, end;
    std::size_t first, last;
  };

  void read(std::int64_t number, char* buffer) override {
    const Piece& piece = pieces_[number];
    if (piece.end - piece.begin > kLongestRead) return read_long(piece, buffer);
    std::int64_t needed = 0;
    for (std::size_t i = piece.first; i < piece.last; ++i) {
      needed = std::max(needed, stretches_[i].end - piece.begin);
    }
    file_->read(buffer, piece.begin, piece.end, needed);
    for (std::size_t i = piece.first; i < piece.last; ++i) {
      const Stretch& stretch = stretches_[i];
      std::memcpy(stretch.to, buffer + (stretch.begin - piece.begin), stretch.end - stretch.begin);
    }
  }

  // One stretch that is longer than a buffer.
  void read_long(const Piece& piece, char* buffer) {
    const Stretch& stretch = stretches_[piece.first];
    for (std::int64_t begin = piece.begin; begin < piece.end; begin += kLongestRead) {
      const std::int64_t end = std::min(begin + kLongestRead, piece.end);
      const std::int64_t first = std::max(begin, stretch.begin), last = std::min(end, stretch.end);
      file_->read(buffer, begin, end, last - begin);
      std::memcpy(stretch.to + (first - stretch.begin), buffer + (first - begin), last - first);
    }
  }

  std::shared_ptr<const DataFile> file_;
  std::vector<Stretch> stretches_;
  std::vector<Piece> pieces_;
  std::int64_t bytes_ = 0;
};

}  // namespace spgnn
