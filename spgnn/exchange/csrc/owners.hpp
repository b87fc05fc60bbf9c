// A rank's rows of a matrix, and who owns their columns.
#pragma once

#include <cstdint>
#include <vector>

namespace spgnn {

// This rank's rows, with columns of the whole matrix.
template <class Index>
struct Rows {
  const std::int64_t* indptr;
  const Index* indices;
  std::int64_t rows;
  std::int64_t nonzeros() const { return indptr[rows]; }
};

// Which peer of a group owns a column. Parts own neighbouring columns; some parts are no peers.
class Owners {
 public:
  // offsets: first column of each part, and the end; members: the parts that are peers, rising.
  Owners(const std::int64_t* offsets, std::int64_t parts, const std::int64_t* members,
         std::int64_t peers)
      : offsets_(offsets), peers_(peers), peer_(parts, -1) {
    for (std::int64_t peer = 0; peer < peers; ++peer) {
      peer_[members[peer]] = static_cast<std::int32_t>(peer);
    }
    // A few buckets a part: walking on from the first part of a bucket takes a step or two.
    while ((offsets[parts] >> shift_) > 4 * parts) ++shift_;
    std::int64_t part = 0;
    for (std::int64_t bucket = 0; bucket <= offsets[parts] >> shift_; ++bucket) {
      while (part + 1 < parts && offsets[part + 1] <= bucket << shift_) ++part;
      first_part_.push_back(static_cast<std::int32_t>(part));
    }
  }

  std::int64_t columns() const { return offsets_[peer_.size()]; }
  std::int64_t peers() const { return peers_; }
  bool all_are_peers() const { return peers_ == static_cast<std::int64_t>(peer_.size()); }
  std::int64_t part_of(std::int64_t column) const {
    std::int64_t part = first_part_[column >> shift_];
    while (offsets_[part + 1] <= column) ++part;
    return part;
  }
  std::int32_t peer_of_part(std::int64_t part) const { return peer_[part]; }
  std::int64_t first_of_part(std::int64_t part) const { return offsets_[part]; }

 private:
  const std::int64_t* offsets_;
  std::int64_t peers_;
  std::vector<std::int32_t> peer_, first_part_;
  int shift_ = 0;
};

}  // namespace spgnn
