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
  MoveFinder(const VolumeState& state, const Bound& max_weight)
      : state_(state),
        max_weight_(max_weight),
        saved_(state.parts(), 0.0),
        touched_(static_cast<std::size_t>(state.parts()) + 1) {}

  bool fits(Vertex v, Part to) const { return state_.weights().fits(v, to, max_weight_); }

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
    const auto nets = state_.hypergraph().nets_of(v);
    for (std::size_t i = 0; i < nets.size(); ++i) {
      const Net e = nets[i];
      if (i + kAhead < nets.size()) counts.prefetch(nets[i + kAhead]);
      const PinCounts::Record& net = counts.net(e);
      const double w = net.weight;
      const bool scattered = state_.scattered(e);
      const bool inside = net.lambda == 1;
      const bool leaves = !inside && counts.lone(e, from);
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

  // With the column objective most terms vanish, and this is where most of the time goes.
  Terms collect(Vertex v) {
    return state_.only_sends_cost() ? collect<false>(v) : collect<true>(v);
  }

  template <bool kReceives>
  Terms collect(Vertex v) {
    const PinCounts& counts = state_.counts();
    const Part from = state_.part(v);
    Terms terms;
    Savings savings{saved_.data(), touched_.data()};
    for (Net e : state_.hypergraph().nets_of(v)) {
      const PinCounts::Record& net = counts.net(e);
      const double w = net.weight;
      const bool scattered = !kReceives || state_.scattered(e);
      // A net wholly inside has no other part to save anything in, and counts need not be read.
      const bool inside = net.lambda == 1;
      work_ += net.lambda + kWorkPerNet;
      if (net.root == v) {
        const bool leaves = !inside && counts.visit_parts(e, from, [&](Part q) {
          savings.add(
              q, w * (kReceives ? state_.price(q) + state_.receive_price(q) : state_.price(q)));
        });
        (scattered ? terms.sends : terms.receives) += w * (net.lambda - leaves);
        terms.fixed -= w * (net.lambda - 1) * root_price(scattered, from);
        if (kReceives && !leaves) terms.fixed += w * root_price(!scattered, from);
      } else {
        const double price = root_price(scattered, net.root_part);
        const bool leaves =
            !inside && save_all<kReceives>(e, from, w * price, w, scattered, savings);
        if (kReceives) (scattered ? terms.receives : terms.sends) += w;
        terms.fixed += w * price;
        if (leaves) terms.fixed -= w * (kReceives ? price + root_price(!scattered, from) : price);
      }
    }
    num_touched_ = savings.num_touched;
    all_touched_ = savings.all_touched;
    return terms;
  }

  // What is saved in each part, and which parts these are.
  struct Savings {
    double* saved;
    Part* touched;
    std::int32_t num_touched = 0;
    bool all_touched = false;

    // Without a branch: whether a part is new here is anyone's guess.
    void add(Part q, double by) {
      touched[num_touched] = q;
      num_touched += saved[q] == 0;
      saved[q] += by;
    }
  };

  // Each part of net e saves `fixed`, and what it would be paying as one that is not the root.
  // Returns whether part `from` holds one pin of the net.
  template <bool kReceives>
  bool save_all(Net e, Part from, double fixed, double w, bool scattered, Savings& savings) {
    const PinCounts& counts = state_.counts();
    if (kReceives && !(scattered && !state_.potential().prices_receive())) {
      return counts.visit_parts(
          e, from, [&](Part q) { savings.add(q, fixed + w * root_price(!scattered, q)); });
    }
    if (!counts.dense(e)) {
      return counts.visit_parts(e, from, [&](Part q) { savings.add(q, fixed); });
    }
    savings.all_touched = true;
    double* saved = savings.saved;
    if (counts.lambda(e) < state_.parts() / kManyParts) {
      return counts.visit_parts(e, from, [&](Part q) { saved[q] += fixed; });
    }
    const std::uint32_t* count = counts.counters(e);
    for (Part q = 0; q < state_.parts(); ++q) saved[q] += count[q] != 0 ? fixed : 0.0;
    return count[from] == 1;
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

  static constexpr std::int64_t kWorkPerNet = 4;
  static constexpr std::size_t kAhead = 8;  // nets whose records are on their way from memory
  // A net in more than one of so many parts is faster read part by part than bit by bit.
  static constexpr Part kManyParts = 3;

  const VolumeState& state_;
  const Bound& max_weight_;
  std::int64_t work_ = 0;
  std::vector<double> saved_;
  std::vector<Part> touched_;
  std::int32_t num_touched_ = 0;
  bool all_touched_ = false;
};

}  // namespace spgnn::gvb
