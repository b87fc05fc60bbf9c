// Where a vertex should go: the change of the potential, for all neighbouring parts at once.
#pragma once

#include "volume_state.hpp"

namespace spgnn::gvb {

struct Move {
  double gain = -1e300;  // estimate at present prices, positive = better
  Part to = -1;
};

class alignas(64) MoveFinder {  // aligned: threads have one each
 public:
  MoveFinder(const VolumeState& state, const Bound& max_weight)
      : state_(state), max_weight_(max_weight), saved_(state.parts(), 0.0),
        touched_(static_cast<std::size_t>(state.parts()) + 1), roots_(state.parts(), 0),
        in_node_(state.nodes().matter() ? state.node_send().size() : 0) {}

  bool fits(Vertex v, Part to) const { return state_.weights().fits(v, to, max_weight_); }

  // The best move to a part that already holds a pin of one of v's nets and has room.
  Move best(Vertex v) {
    return best_of(v, [&](Part q) { return fits(v, q); });
  }

  // The same whether it has room or not.
  Move best_anywhere(Vertex v) {
    return best_of(v, [](Part) { return true; });
  }

  // Whether no move of v can lower the cost, by a bound from its own part alone: nets inside it
  // cost their row wherever v goes, and only nets that v alone holds there save one.
  bool hopeless(Vertex v) {
    if (state_.hypergraph().is_fixed(v)) return true;
    const PinCounts& counts = state_.counts();
    const Part from = state_.part(v);
    double bound = state_.load_price(v, from);
    const auto nets = state_.hypergraph().nets_of(v);
    for (std::size_t i = 0; i < nets.size(); ++i) {
      const Net e = nets[i];
      if (i + kAhead < nets.size()) counts.prefetch(nets[i + kAhead]);
      const PinCounts::Record& net = counts.net(e);
      const double w = net.weight;
      const bool scattered = state_.scattered(e);
      const bool inside = net.lambda == 1;
      const bool leaves = !inside && counts.lone(e, from);
      if (state_.nodes().matter()) {
        if (net.root == v) {
          counts.for_parts(e, [&](Part p) { bound += w * pair_price(scattered, from, p); });
          const double rows = net.lambda - 1 + inside - leaves;
          bound -= w * rows * (lowest_root_price(scattered) + lowest_root_price(!scattered));
        } else if (inside) {
          bound -= w * (root_price(scattered, from) + lowest_root_price(!scattered));
        } else if (leaves) {
          bound += w * pair_price(scattered, net.root_part, from);
        }
        continue;
      }
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
    work_ += kWorkPerNet * static_cast<i64>(state_.hypergraph().nets_of(v).size());
    return bound <= 0;
  }

  // Pin counts looked at so far: the measure of effort, the same on every machine.
  i64 work() const { return work_; }

  // The gain of one particular move, whether it fits or not.
  double gain(Vertex v, Part to) {
    num_likely_ = 1;
    likely_[0] = to;
    const Terms terms = collect(v);
    const double gain = saved_[to] - cost_at(to, terms) - state_.load_price(v, to);
    for (i32 i = 0; i < num_touched_; ++i) saved_[touched_[i]] = 0.0;
    forget_nodes();
    return gain;
  }

 private:
  template <class Allowed> Move best_of(Vertex v, Allowed&& allowed) {
    if (state_.hypergraph().is_fixed(v)) return {};
    list_likely(v);
    const Terms terms = collect(v);
    Move move;
    const Part from = state_.part(v);
    const auto consider = [&](Part q) {
      const double gain = saved_[q] - cost_at(q, terms) - state_.load_price(v, q);
      saved_[q] = 0;
      if (gain > move.gain && q != from && allowed(q)) move = {gain, q};
    };
    for (i32 i = 0; i < num_touched_; ++i) consider(touched_[i]);
    forget_nodes();
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

  // Where only what is sent counts, most terms vanish, and this is where most of the time goes.
  Terms collect(Vertex v) {
    if (state_.nodes().matter()) return collect_between_nodes(v);
    return state_.only_sends_cost() ? collect<false>(v) : collect<true>(v);
  }

  double cost_at(Part q, const Terms& terms) const {
    if (!state_.nodes().matter()) return terms.at(q, state_);
    const Terms& inside = in_node_[state_.node(q)];
    return terms.fixed + inside.at(q, state_) +
           (terms.sends - inside.sends) * state_.outside_price(q) +
           (terms.receives - inside.receives) * state_.outside_receive_price(q);
  }

  void forget_nodes() {
    for (Part node : touched_nodes_) in_node_[node] = {};
    touched_nodes_.clear();
  }

  // The same where v's new part may be on another node; in_node_: what is different on each.
  Terms collect_between_nodes(Vertex v) {
    const PinCounts& counts = state_.counts();
    const Part from = state_.part(v);
    Terms terms;
    terms.fixed = -state_.load_price(v, from);
    Savings savings{saved_.data(), touched_.data()};
    for (Net e : state_.hypergraph().nets_of(v)) {
      const PinCounts::Record& net = counts.net(e);
      const double w = net.weight;
      const bool scattered = state_.scattered(e);
      work_ += net.lambda + kWorkPerNet;
      const auto exchange = [&](Part p, double rows, bool sends) {
        Terms& inside = in_node_[state_.node(p)];
        if (inside.sends == 0 && inside.receives == 0) touched_nodes_.push_back(state_.node(p));
        const double price = outside_root_price(!sends, p);
        (sends ? terms.sends : terms.receives) += rows;
        (sends ? inside.sends : inside.receives) += rows;
        terms.fixed += rows * price;
        inside.fixed += rows * (root_price(!sends, p) - price);
      };
      if (net.root == v) {
        const bool leaves = counts.visit_parts(e, from, [&](Part p) {
          savings.add(p, w * (state_.price(p) + state_.receive_price(p)));
          if (p == from) return;
          exchange(p, w, scattered);
          terms.fixed -= w * pair_price(scattered, from, p);
        });
        if (!leaves) exchange(from, w, scattered);
      } else {
        exchange(net.root_part, w, !scattered);
        if (net.lambda == 1) continue;
        const bool leaves = counts.visit_parts(e, from, [&](Part p) {
          savings.add(p, w * (p == net.root_part ? state_.price(p) + state_.receive_price(p)
                                                 : pair_price(scattered, net.root_part, p)));
        });
        if (leaves) terms.fixed -= w * pair_price(scattered, net.root_part, from);
      }
    }
    num_touched_ = savings.num_touched;
    return terms;
  }

  template <bool kReceives> Terms collect(Vertex v) {
    const PinCounts& counts = state_.counts();
    const Part from = state_.part(v);
    Terms terms;
    terms.fixed = -state_.load_price(v, from);
    Savings savings{saved_.data(), touched_.data()};
    for (Net e : state_.hypergraph().nets_of(v)) {
      const PinCounts::Record& net = counts.net(e);
      const double w = net.weight;
      const bool scattered = !kReceives || state_.scattered(e);
      // A net wholly inside has no other part to save anything in, and counts need not be read.
      const bool inside = net.lambda == 1;
      const bool dense = counts.dense(e);
      work_ += (dense ? num_likely_ : net.lambda) + kWorkPerNet;
      const auto visit = [&](const auto& saves) {
        if (inside) return false;
        if (!dense) {
          return counts.visit_parts(e, from, [&](Part q) { savings.add(q, saves(q)); });
        }
        for (Part i = 0; i < num_likely_; ++i) {
          likely_saved_[i] += counts.dense_in(e, likely_[i]) ? saves(likely_[i]) : 0.0;
        }
        return counts.lone(e, from);
      };
      if (net.root == v) {
        const bool leaves = visit([&](Part q) {
          return w * (kReceives ? state_.price(q) + state_.receive_price(q) : state_.price(q));
        });
        (scattered ? terms.sends : terms.receives) += w * (net.lambda - leaves);
        terms.fixed -= w * (net.lambda - 1) * root_price(scattered, from);
        if (kReceives && !leaves) terms.fixed += w * root_price(!scattered, from);
      } else {
        const double price = root_price(scattered, net.root_part);
        const double* prices = scattered ? state_.receive_prices() : state_.prices();
        // What a part pays as one that is not the root, and what the root pays for it.
        const bool leaves =
            visit([&](Part q) { return w * (kReceives ? price + prices[q] : price); });
        if (kReceives) (scattered ? terms.receives : terms.sends) += w;
        terms.fixed += w * price;
        if (leaves) terms.fixed -= w * (kReceives ? price + root_price(!scattered, from) : price);
      }
    }
    for (Part i = 0; i < num_likely_; ++i) {
      const double by = std::exchange(likely_saved_[i], 0.0);
      if (by != 0) savings.add(likely_[i], by);
    }
    num_touched_ = savings.num_touched;
    return terms;
  }

  // What is saved in each part, and which parts these are.
  struct Savings {
    double* saved;
    Part* touched;
    i32 num_touched = 0;

    // Without a branch: whether a part is new here is anyone's guess.
    void add(Part q, double by) {
      touched[num_touched] = q;
      num_touched += saved[q] == 0;
      saved[q] += by;
    }
  };

  // Large nets are in most parts: only the parts with most roots of v's nets are looked at.
  void list_likely(Vertex v) {
    const PinCounts& counts = state_.counts();
    num_likely_ = 0;
    if (!counts.any_dense() || state_.nodes().matter()) return;
    bool any_dense = false;
    i32 listed = 0;
    for (Net e : state_.hypergraph().nets_of(v)) {
      const PinCounts::Record& net = counts.net(e);
      any_dense |= counts.dense(e);
      touched_[listed] = net.root_part;
      listed += roots_[net.root_part] == 0;
      roots_[net.root_part] += net.weight;
    }
    const Part from = state_.part(v);
    for (i32 i = 0; i < listed; ++i) {
      const Part p = touched_[i];
      const i64 roots = std::exchange(roots_[p], 0);
      if (!any_dense || p == from ||
          (num_likely_ == kLikely && roots <= likely_roots_[kLikely - 1])) {
        continue;
      }
      Part place = std::min(num_likely_, kLikely - 1);
      for (; place > 0 && likely_roots_[place - 1] < roots; --place) {
        likely_[place] = likely_[place - 1];
        likely_roots_[place] = likely_roots_[place - 1];
      }
      likely_[place] = p;
      likely_roots_[place] = roots;
      num_likely_ = std::min(num_likely_ + 1, kLikely);
    }
  }

  double root_price(bool scattered, Part p) const {
    return scattered ? state_.price(p) : state_.receive_price(p);
  }

  double outside_root_price(bool scattered, Part p) const {
    return scattered ? state_.outside_price(p) : state_.outside_receive_price(p);
  }
  // Of a row between the part of a root and another.
  double pair_price(bool scattered, Part root, Part p) const {
    if (p == root) return 0;
    if (state_.node(p) != state_.node(root)) {
      return outside_root_price(scattered, root) + outside_root_price(!scattered, p);
    }
    return root_price(scattered, root) + root_price(!scattered, p);
  }

  double lowest_root_price(bool scattered) const {
    return scattered ? state_.lowest_price() : state_.lowest_receive_price();
  }
  double highest_root_price(bool scattered) const {
    return scattered ? state_.highest_price() : state_.highest_receive_price();
  }

  static constexpr i64 kWorkPerNet = 4;
  static constexpr std::size_t kAhead = 8;  // nets whose records are on their way from memory
  static constexpr Part kLikely = 8;        // parts

  const VolumeState& state_;
  const Bound& max_weight_;
  i64 work_ = 0;
  std::vector<double> saved_;
  std::vector<Part> touched_;
  i32 num_touched_ = 0;
  std::vector<i64> roots_;  // nets of a vertex with their root in each part, by weight
  std::array<Part, kLikely> likely_{};
  std::array<i64, kLikely> likely_roots_{};
  std::array<double, kLikely> likely_saved_{};
  Part num_likely_ = 0;
  std::vector<Terms> in_node_;  // of each node; none without nodes
  std::vector<Part> touched_nodes_;
};

}  // namespace spgnn::gvb
