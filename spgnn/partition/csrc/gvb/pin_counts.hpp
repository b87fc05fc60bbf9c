// Φ(e, p): how many pins of net e lie in part p, kept only where it is positive.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "hypergraph.hpp"

namespace spgnn::gvb {

// Everything a move looks up about a net lies in one record. A net with at least k pins holds a bit
// per part, set where the count is positive, and k counters; a smaller one a short list of
// (part, count) packed in 32 bits: its counts fit in 16 bits as k does.
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
      : parts_(parts),
        words_((parts + 31) / 32),
        record_(static_cast<std::size_t>(h.num_nets()) + 1) {
    std::int64_t begin = 0;
    for (Net e = 0; e < h.num_nets(); ++e) {
      record_[e] = {begin, 0, h.net_weight[e], h.root(e), part[h.root(e)]};
      begin += h.size(e) < parts ? h.size(e) : words_ + parts;
    }
    record_[h.num_nets()].begin = begin;
    pool_.assign(begin, 0);
    for (Net e = 0; e < h.num_nets(); ++e) {
      for (Vertex v : h.pins_of(e)) add(e, part[v]);
    }
  }

  const Record& net(Net e) const { return record_[e]; }
  void prefetch(Net e) const { __builtin_prefetch(&record_[e]); }
  std::int32_t lambda(Net e) const { return record_[e].lambda; }
  void set_root_part(Net e, Part p) { record_[e].root_part = p; }

  // Both return the count before.
  std::uint32_t add(Net e, Part p) {
    std::uint32_t* list = pool_.data() + record_[e].begin;
    std::int32_t& lambda = record_[e].lambda;
    if (dense(e)) {
      const std::uint32_t before = list[words_ + p]++;
      if (before == 0) {
        ++lambda;
        list[p / 32] |= 1u << p % 32;
      }
      return before;
    }
    for (std::int32_t i = 0; i < lambda; ++i) {
      if (list[i] >> 16 == static_cast<std::uint32_t>(p)) return list[i]++ & 0xffff;
    }
    list[lambda++] = one_pin_in(p);
    return 0;
  }

  std::uint32_t remove(Net e, Part p) {
    std::uint32_t* list = pool_.data() + record_[e].begin;
    std::int32_t& lambda = record_[e].lambda;
    if (dense(e)) {
      const std::uint32_t before = list[words_ + p]--;
      if (before == 1) {
        --lambda;
        list[p / 32] &= ~(1u << p % 32);
      }
      return before;
    }
    std::int32_t i = 0;
    while (list[i] >> 16 != static_cast<std::uint32_t>(p)) ++i;
    const std::uint32_t before = list[i]-- & 0xffff;
    if (before == 1) list[i] = list[--lambda];
    return before;
  }

  bool dense(Net e) const { return record_[e + 1].begin - record_[e].begin > parts_; }
  // One counter per part, of a dense net.
  const std::uint32_t* counters(Net e) const { return pool_.data() + record_[e].begin + words_; }

  // Whether part p holds exactly one pin of the net.
  bool lone(Net e, Part p) const {
    const std::uint32_t* list = pool_.data() + record_[e].begin;
    if (dense(e)) return list[words_ + p] == 1;
    return std::find(list, list + record_[e].lambda, one_pin_in(p)) != list + record_[e].lambda;
  }

  // Calls f(p) for every part of the net.
  template <class F>
  void for_parts(Net e, F&& f) const {
    visit_parts(e, 0, f);
  }

  // The same; whether part `own` holds exactly one pin is found on the way.
  template <class F>
  bool visit_parts(Net e, Part own, F&& f) const {
    const std::uint32_t* list = pool_.data() + record_[e].begin;
    if (dense(e)) {
      for (Part i = 0; i < words_; ++i) {
        for (std::uint32_t bits = list[i]; bits != 0; bits &= bits - 1) {
          f(32 * i + std::countr_zero(bits));
        }
      }
      return list[words_ + own] == 1;
    }
    bool lone = false;
    for (const std::uint32_t *entry = list, *end = list + record_[e].lambda; entry != end;
         ++entry) {
      lone |= *entry == one_pin_in(own);
      f(static_cast<Part>(*entry >> 16));
    }
    return lone;
  }

 private:
  static std::uint32_t one_pin_in(Part p) { return static_cast<std::uint32_t>(p) << 16 | 1; }

  Part parts_, words_;
  std::vector<Record> record_;  // one more than nets
  std::vector<std::uint32_t> pool_;
};

}  // namespace spgnn::gvb
