// The historical embedding cache of DistGNN-MB (Vasimuddin et al. 2022, section 3.2): which
// vertex's row lies in which slot of a table. The vertices of a halo are numbered from 0, so an
// array takes the place of hashing; slots form a list by the order in which they were written last.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "parallel.hpp"

namespace spgnn {

struct CacheHits {
  std::int64_t found = 0, ages = 0;
};

class EmbeddingCache {
 public:
  using Vertices = std::span<const std::int64_t>;

  EmbeddingCache(std::int64_t vertices, std::int64_t capacity)
      : slot_(vertices, kNone), lines_(capacity) {}

  std::int64_t used() const { return used_; }
  bool knows(Vertices vertices) const {
    const auto limit = static_cast<std::uint64_t>(slot_.size());
    return std::all_of(vertices.begin(), vertices.end(),
                       [&](std::int64_t v) { return static_cast<std::uint64_t>(v) < limit; });
  }

  // HECSearch: the slot of each vertex's row, −1 where there is none or it was made more than
  // `life` iterations before `now`.
  CacheHits search(Vertices vertices, std::int64_t now, std::int64_t life, std::int64_t* slots,
                   int threads) const {
    std::atomic<std::int64_t> found{0}, ages{0};
    in_spans(vertices.size(), threads, [&](std::size_t first, std::size_t last) {
      CacheHits hits;
      for (std::size_t i = first; i < last; ++i) {
        const std::int32_t slot = slot_[vertices[i]];
        const std::int64_t age = slot == kNone ? 0 : now - lines_[slot].made;
        const bool is_hit = slot != kNone && age <= life;
        slots[i] = is_hit ? slot : kNone;
        hits.found += is_hit;
        hits.ages += is_hit ? age : 0;
      }
      found += hits.found;
      ages += hits.ages;
    });
    return {found, ages};
  }

  // Vertex, iteration and slot of each row, from the one that was written longest ago on.
  void list(std::int64_t* vertices, std::int64_t* made, std::int64_t* slots) const {
    for (std::int32_t slot = oldest_; slot != kNone; slot = lines_[slot].newer) {
      *vertices++ = lines_[slot].vertex;
      *made++ = lines_[slot].made;
      *slots++ = slot;
    }
  }

  // HECStore: writes rows to `table`, one after the other: each replaces the row of its vertex,
  // takes a slot that was never used, or evicts the row that was written longest ago.
  void store(Vertices vertices, std::int64_t made, const char* rows, char* table,
             std::size_t row_bytes, int threads) {
    if (lines_.empty()) return;
    written_.resize(vertices.size());
    for (std::size_t i = 0; i < vertices.size(); ++i) {
      std::int32_t& slot = slot_[vertices[i]];
      if (slot != kNone) {
        take_out(slot);
      } else if (used_ < static_cast<std::int64_t>(lines_.size())) {
        slot = static_cast<std::int32_t>(used_++);
      } else {
        const std::int32_t oldest = oldest_;
        take_out(oldest);
        slot_[lines_[oldest].vertex] = kNone;
        slot = oldest;
      }
      append(slot);
      Line& line = lines_[slot];
      line.vertex = static_cast<std::int32_t>(vertices[i]);
      line.made = made;
      line.writer = i;
      written_[i] = slot;
    }
    // Of rows that went to one slot, the last alone is copied, so no two threads write it.
    in_spans(vertices.size(), threads, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        const auto slot = static_cast<std::size_t>(written_[i]);
        if (lines_[slot].writer == i) {
          std::memcpy(table + slot * row_bytes, rows + i * row_bytes, row_bytes);
        }
      }
    });
  }

 private:
  static constexpr std::int32_t kNone = -1;
  struct Line {
    std::int64_t made = 0;
    std::size_t writer = 0;  // position in the last call of store that wrote it
    std::int32_t vertex = kNone, older = kNone, newer = kNone;
  };

  template <class Body>
  static void in_spans(std::size_t count, int threads, const Body& body) {
    constexpr std::size_t kSpan = 512;
    const auto tasks = static_cast<std::int64_t>((count + kSpan - 1) / kSpan);
    for_each_task(tasks, threads, [&](std::int64_t task) {
      const std::size_t first = static_cast<std::size_t>(task) * kSpan;
      body(first, std::min(first + kSpan, count));
    });
  }

  void take_out(std::int32_t slot) {
    const auto [older, newer] = std::pair(lines_[slot].older, lines_[slot].newer);
    (older == kNone ? oldest_ : lines_[older].newer) = newer;
    (newer == kNone ? newest_ : lines_[newer].older) = older;
  }
  void append(std::int32_t slot) {
    lines_[slot].older = newest_;
    lines_[slot].newer = kNone;
    (newest_ == kNone ? oldest_ : lines_[newest_].newer) = slot;
    newest_ = slot;
  }

  std::vector<std::int32_t> slot_;  // of each vertex
  std::vector<Line> lines_;         // of each slot
  std::vector<std::int32_t> written_;
  std::int32_t oldest_ = kNone, newest_ = kNone;
  std::int64_t used_ = 0;
};

}  // namespace spgnn
