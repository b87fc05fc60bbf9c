// Φ(e, p): how many pins of net e lie in part p, kept only where it is positive.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hypergraph.hpp"

namespace spgnn::gvb {

// Everything a move looks up about a net lies in one record. A net with at least k pins holds k
// counters; a smaller one a short list of (part, count) packed in 32 bits: its counts fit in 16
// bits as k does.
class PinCounts {
 public:
  static constexpr Part kMaxParts = 1 << 16;

  struct Record {
    std::int64_t begin;
    std::int32_t lambda;
    std::int32_t weight;
    Vertex root;
    Part root_part;
  };

  PinCounts(const Hypergraph& h, const std::vector<Part>& part, Part parts)
      : parts_(parts), record_(static_cast<std::size_t>(h.num_nets()) + 1) {
    std::int64_t begin = 0;
    for (Net e = 0; e < h.num_nets(); ++e) {
      record_[e] = {begin, 0, h.net_weight[e], h.root(e), part[h.root(e)]};
      begin += std::min<std::int64_t>(h.size(e), parts);
    }
    record_[h.num_nets()].begin = begin;
    pool_.assign(begin, 0);
    for (Net e = 0; e < h.num_nets(); ++e) {
      for (Vertex v : h.pins_of(e)) add(e, part[v]);
    }
  }

  const Record& net(Net e) const { return record_[e]; }
  std::int32_t lambda(Net e) const { return record_[e].lambda; }
  void set_root_part(Net e, Part p) { record_[e].root_part = p; }

  std::uint32_t operator()(Net e, Part p) const {
    const std::uint32_t* list = pool_.data() + record_[e].begin;
    if (dense(e)) return list[p];
    for (std::int32_t i = 0; i < record_[e].lambda; ++i) {
      if (list[i] >> 16 == static_cast<std::uint32_t>(p)) return list[i] & 0xffff;
    }
    return 0;
  }

  // Both return the count before.
  std::uint32_t add(Net e, Part p) {
    std::uint32_t* list = pool_.data() + record_[e].begin;
    std::int32_t& lambda = record_[e].lambda;
    if (dense(e)) {
      if (list[p] == 0) ++lambda;
      return list[p]++;
    }
    for (std::int32_t i = 0; i < lambda; ++i) {
      if (list[i] >> 16 == static_cast<std::uint32_t>(p)) return list[i]++ & 0xffff;
    }
    list[lambda++] = static_cast<std::uint32_t>(p) << 16 | 1;
    return 0;
  }

  std::uint32_t remove(Net e, Part p) {
    std::uint32_t* list = pool_.data() + record_[e].begin;
    std::int32_t& lambda = record_[e].lambda;
    if (dense(e)) {
      if (list[p] == 1) --lambda;
      return list[p]--;
    }
    std::int32_t i = 0;
    while (list[i] >> 16 != static_cast<std::uint32_t>(p)) ++i;
    const std::uint32_t before = list[i]-- & 0xffff;
    if (before == 1) list[i] = list[--lambda];
    return before;
  }

  bool dense(Net e) const { return record_[e + 1].begin - record_[e].begin == parts_; }
  // The counters of a dense net, one per part; the packed entries of another.
  const std::uint32_t* entries(Net e) const { return pool_.data() + record_[e].begin; }

  // Calls f(p) for every part of the net.
  template <class F>
  void for_parts(Net e, F&& f) const {
    const std::uint32_t* list = entries(e);
    if (dense(e)) {
      for (Part p = 0; p < parts_; ++p) {
        if (list[p] != 0) f(p);
      }
    } else {
      const std::int32_t lambda = record_[e].lambda;
      for (std::int32_t i = 0; i < lambda; ++i) f(static_cast<Part>(list[i] >> 16));
    }
  }

 private:
  Part parts_;
  std::vector<Record> record_;  // one more than nets
  std::vector<std::uint32_t> pool_;
};

}  // namespace spgnn::gvb
