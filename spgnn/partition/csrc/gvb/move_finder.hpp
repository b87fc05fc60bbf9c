// Where a vertex should go: the change of the potential, for all neighbouring parts at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "volume_state.hpp"

namespace spgnn::gvb {

struct Move {
  double gain = -1e300;  // estimate at present prices, positive = better
  Part to = -1;
};

class MoveFinder {
 public:
  MoveFinder(const VolumeState& state, const std::vector<std::int64_t>& max_weight)
      : state_(state),
        max_weight_(max_weight),
        saved_(state.parts(), 0.0),
        touched_(static_cast<std::size_t>(state.parts()) + 1) {}

  bool fits(Vertex v, Part to) const {
    const auto weight = state_.hypergraph().weight_of(v);
    for (int c = 0; c < state_.hypergraph().constraints; ++c) {
      if (state_.weight(to, c) + weight[c] > max_weight_[c]) return false;
    }
    return true;
  }

  // The best move to a part that already holds a pin of one of v's nets and has room.
  Move best(Vertex v) {
    return best_of(v, [&](Part q) { return fits(v, q); });
  }

  // The same whether it has room or not.
  Move best_anywhere(Vertex v) {
    return best_of(v, [](Part) { return true; });
  }

  // Whether no move of v can lower the cost, by a bound that looks at no part but v's own: nets
  // wholly inside it cost their row wherever v goes, and only nets that v alone holds there save
  // one. Cheap, and true of most vertices.
  bool hopeless(Vertex v) {
    const PinCounts& counts = state_.counts();
    const Part from = state_.part(v);
    double bound = 0;
    for (Net e : state_.hypergraph().nets_of(v)) {
      const PinCounts::Record& net = counts.net(e);
      const double w = net.weight;
      const bool scattered = state_.scattered(e);
      const bool inside = net.lambda == 1;
      const bool leaves = !inside && counts(e, from) == 1;
      if (net.root == v) {
        const double rows = net.lambda - 1;
        bound += w * rows * root_price(scattered, from);
        bound -= w * (rows + inside - leaves) * lowest_root_price(scattered);
        if (!leaves) bound -= w * root_price(!scattered, from);
        if (!inside) bound += w * highest_root_price(!scattered);
      } else if (inside) {
        bound -= w * (root_price(scattered, from) + lowest_root_price(!scattered));
      } else if (leaves) {
        bound += w * (root_price(scattered, net.root_part) + root_price(!scattered, from));
      }
    }
    work_ += kWorkPerNet * static_cast<std::int64_t>(state_.hypergraph().nets_of(v).size());
    return bound <= 0;
  }

  // Pin counts looked at so far: the measure of effort, the same on every machine.
  std::int64_t work() const { return work_; }

  // The gain of one particular move, whether it fits or not.
  double gain(Vertex v, Part to) {
    const Terms terms = collect(v);
    const double gain = saved_[to] - terms.at(to, state_);
    std::fill(saved_.begin(), saved_.end(), 0.0);
    return gain;
  }

 private:
  template <class Allowed>
  Move best_of(Vertex v, Allowed&& allowed) {
    const Terms terms = collect(v);
    Move move;
    const Part from = state_.part(v);
    const auto consider = [&](Part q) {
      const double gain = saved_[q] - terms.at(q, state_);
      saved_[q] = 0;
      if (gain > move.gain && q != from && allowed(q)) move = {gain, q};
    };
    if (all_touched_) {
      for (Part q = 0; q < state_.parts(); ++q) {
        if (saved_[q] != 0) consider(q);
      }
    } else {
      for (std::int32_t i = 0; i < num_touched_; ++i) consider(touched_[i]);
    }
    return move;
  }

  // The cost of moving to a part none of v's nets touches is fixed + Σ prices of that part times
  // these weights; saved_[q] is what the nets save that q is already part of.
  struct Terms {
    double fixed = 0;
    double sends = 0, receives = 0;  // rows the new part would send and receive
    double at(Part q, const VolumeState& state) const {
      return fixed + sends * state.price(q) + receives * state.receive_price(q);
    }
  };

  Terms collect(Vertex v) {
    const PinCounts& counts = state_.counts();
    const Part from = state_.part(v);
    Terms terms;
    num_touched_ = 0;
    all_touched_ = false;
    for (Net e : state_.hypergraph().nets_of(v)) {
      const PinCounts::Record& net = counts.net(e);
      const double w = net.weight;
      const bool scattered = state_.scattered(e);
      // A net wholly inside has no other part to save anything in, and counts need not be read.
      const bool inside = net.lambda == 1;
      const bool leaves = !inside && counts(e, from) == 1;
      work_ += net.lambda + kWorkPerNet;
      double& as_root = scattered ? terms.sends : terms.receives;
      double& as_other = scattered ? terms.receives : terms.sends;
      if (net.root == v) {
        as_root += w * (net.lambda - leaves);
        terms.fixed -= w * (net.lambda - 1) * root_price(scattered, from);
        if (!leaves) terms.fixed += w * root_price(!scattered, from);
        if (inside) continue;
        counts.for_parts(e,
                         [&](Part q) { save(q, w * (state_.price(q) + state_.receive_price(q))); });
      } else {
        const double price = root_price(scattered, net.root_part);
        as_other += w;
        terms.fixed += w * price;
        if (leaves) terms.fixed -= w * (price + root_price(!scattered, from));
        if (!inside) save_all(e, w * price, w, scattered);
      }
    }
    return terms;
  }

  // Each part of net e saves `fixed`, and what it would be paying as one that is not the root.
  void save_all(Net e, double fixed, double w, bool scattered) {
    const PinCounts& counts = state_.counts();
    if (scattered && !state_.potential().prices_receive()) {
      if (counts.dense(e)) {
        const std::uint32_t* count = counts.entries(e);
        for (Part q = 0; q < state_.parts(); ++q) saved_[q] += count[q] != 0 ? fixed : 0.0;
        all_touched_ = true;
      } else {
        counts.for_parts(e, [&](Part q) { save(q, fixed); });
      }
    } else {
      counts.for_parts(e, [&](Part q) { save(q, fixed + w * root_price(!scattered, q)); });
    }
  }

  double root_price(bool scattered, Part p) const {
    return scattered ? state_.price(p) : state_.receive_price(p);
  }

  double lowest_root_price(bool scattered) const {
    return scattered ? state_.lowest_price() : state_.lowest_receive_price();
  }
  double highest_root_price(bool scattered) const {
    return scattered ? state_.highest_price() : state_.highest_receive_price();
  }

  // Without a branch: whether a part is new here is anyone's guess.
  void save(Part q, double by) {
    touched_[num_touched_] = q;
    num_touched_ += saved_[q] == 0;
    saved_[q] += by;
  }

  static constexpr std::int64_t kWorkPerNet = 4;

  const VolumeState& state_;
  const std::vector<std::int64_t>& max_weight_;
  std::int64_t work_ = 0;
  std::vector<double> saved_;
  std::vector<Part> touched_;
  std::int32_t num_touched_ = 0;
  bool all_touched_ = false;
};

}  // namespace spgnn::gvb
