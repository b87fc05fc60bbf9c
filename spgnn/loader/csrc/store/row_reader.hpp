// Stretches of a file, in any order, those that lie close together by one read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "read_queue.hpp"

namespace spgnn {

// Bytes [begin, end) of the file, which go to `to`.
struct Stretch {
  std::int64_t begin, end;
  char* to;
};

class StretchJob : public ReadingJob {
 public:
  // `gap`: so many bytes that nobody asked for are read rather than skipped.
  StretchJob(std::shared_ptr<const DataFile> file, std::vector<Stretch> stretches, std::int64_t gap)
      : file_(std::move(file)), stretches_(std::move(stretches)) {
    const auto before = [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; };
    if (!std::is_sorted(stretches_.begin(), stretches_.end(), before)) {
      std::sort(stretches_.begin(), stretches_.end(), before);
    }
    for (std::size_t i = 0; i < stretches_.size(); ++i) add(i, gap);
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

  // To the last piece, if it lies close enough; in pieces of its own if it is longer than a read.
  void add(std::size_t i, std::int64_t gap) {
    const std::int64_t unit = file_->alignment();
    std::int64_t begin = stretches_[i].begin / unit * unit;
    const std::int64_t end = (stretches_[i].end + unit - 1) / unit * unit;
    if (!pieces_.empty()) {
      Piece& before = pieces_.back();
      const std::int64_t last = std::max(end, before.end);
      if (before.begin <= begin && begin <= before.end + gap &&
          last - before.begin <= kLongestRead) {
        before.end = last;
        before.last = i + 1;
        return;
      }
    }
    do {
      const std::int64_t until = std::min(begin + kLongestRead, end);
      pieces_.push_back({begin, until, i, i + 1});
      begin = until;
    } while (begin < end);
  }

  FileRead read(std::int64_t number) const override {
    const Piece& piece = pieces_[number];
    std::int64_t last = piece.begin;
    for (std::size_t i = piece.first; i < piece.last; ++i) {
      last = std::max(last, std::min(stretches_[i].end, piece.end));
    }
    return {*file_, piece.begin, piece.end, last - piece.begin};
  }

  void use(std::int64_t number, const char* buffer) override {
    const Piece& piece = pieces_[number];
    for (std::size_t i = piece.first; i < piece.last; ++i) {
      const Stretch& stretch = stretches_[i];
      const std::int64_t first = std::max(piece.begin, stretch.begin);
      const std::int64_t last = std::min(piece.end, stretch.end);
      std::memcpy(stretch.to + (first - stretch.begin), buffer + (first - piece.begin),
                  last - first);
    }
  }

  std::shared_ptr<const DataFile> file_;
  std::vector<Stretch> stretches_;
  std::vector<Piece> pieces_;
  std::int64_t bytes_ = 0;
};

}  // namespace spgnn
