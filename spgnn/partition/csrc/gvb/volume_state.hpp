// A k-way partition with its volumes, kept up to date under moves of single vertices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "hypergraph.hpp"
#include "pin_counts.hpp"
#include "potential.hpp"

namespace spgnn::gvb {

class VolumeState {
 public:
  VolumeState(const Hypergraph& h, std::vector<Part> part, Part parts)
      : h_(h),
        parts_(parts),
        part_(std::move(part)),
        count_(h, part_, parts),
        send_(parts, 0),
        receive_(parts, 0),
        price_(parts, 1.0),
        receive_price_(parts, 0.0),
        weights_(h, part_, parts) {
    for (Net e = 0; e < h.num_nets(); ++e) {
      const Part root = part_[h.root(e)];
      const std::int64_t w = h.net_weight[e];
      auto& at_root = scattered(e) ? send_ : receive_;
      auto& at_others = scattered(e) ? receive_ : send_;
      at_root[root] += w * (count_.lambda(e) - 1);
      total_ += w * (count_.lambda(e) - 1);
      count_.for_parts(e, [&](Part p) { at_others[p] += p == root ? 0 : w; });
    }
    set_potential({});
  }

  const Hypergraph& hypergraph() const { return h_; }
  Part parts() const { return parts_; }
  Part part(Vertex v) const { return part_[v]; }
  const std::vector<Part>& labels() const { return part_; }
  std::vector<Part> take_labels() && { return std::move(part_); }
  const PinCounts& counts() const { return count_; }
  bool scattered(Net e) const { return e < h_.num_scatter; }

  std::int64_t total() const { return total_; }
  const std::vector<std::int64_t>& send() const { return send_; }
  const std::vector<std::int64_t>& receive() const { return receive_; }
  std::int64_t max_send() const { return *std::max_element(send_.begin(), send_.end()); }
  std::int64_t max_receive() const { return *std::max_element(receive_.begin(), receive_.end()); }
  const PartWeights& weights() const { return weights_; }

  void set_potential(const Potential& potential) {
    potential_ = potential;
    cost_ = 0;
    lowest_price_ = lowest_receive_price_ = std::numeric_limits<double>::max();
    highest_price_ = highest_receive_price_ = 0;
    for (Part p = 0; p < parts_; ++p) {
      cost_ += potential_.send_cost(send_[p]) + potential_.receive_cost(receive_[p]);
      set_prices(p);
    }
  }
  const Potential& potential() const { return potential_; }
  double cost() const { return cost_; }
  // What one more row sent (received) by a part costs now.
  double price(Part p) const { return price_[p]; }
  double receive_price(Part p) const { return receive_price_[p]; }
  bool only_sends_cost() const {
    return h_.num_scatter == h_.num_nets() && !potential_.prices_receive();
  }

  // Bounds of all prices: exact when the potential was set, moves only widen them.
  double lowest_price() const { return lowest_price_; }
  double highest_price() const { return highest_price_; }
  double lowest_receive_price() const { return lowest_receive_price_; }
  double highest_receive_price() const { return highest_receive_price_; }

  void move(Vertex v, Part to) {
    const Part from = part_[v];
    touched_.clear();
    for (Net e : h_.nets_of(v)) {
      const std::int64_t w = count_.net(e).weight;
      auto& at_root = scattered(e) ? send_delta_ : receive_delta_;
      auto& at_others = scattered(e) ? receive_delta_ : send_delta_;
      const std::int64_t lambda = count_.lambda(e);
      const bool leaves = count_.remove(e, from) == 1;
      const bool enters = count_.add(e, to) == 0;
      total_ += w * (enters - leaves);
      if (count_.net(e).root == v) {
        count_.set_root_part(e, to);
        at_root.push_back({from, -w * (lambda - 1)});
        at_root.push_back({to, w * (count_.lambda(e) - 1)});
        if (!enters) at_others.push_back({to, -w});
        if (!leaves) at_others.push_back({from, w});
      } else if (enters != leaves || enters) {
        if (enters != leaves) at_root.push_back({count_.net(e).root_part, enters ? w : -w});
        if (leaves) at_others.push_back({from, -w});
        if (enters) at_others.push_back({to, w});
      }
    }
    part_[v] = to;
    weights_.move(v, from, to);
    settle();
  }

 private:
  using Change = std::pair<Part, std::int64_t>;

  void settle() {
    for (auto [p, by] : send_delta_) {
      cost_ -= potential_.send_cost(send_[p]);
      send_[p] += by;
      cost_ += potential_.send_cost(send_[p]);
      touched_.push_back(p);
    }
    for (auto [p, by] : receive_delta_) {
      cost_ -= potential_.receive_cost(receive_[p]);
      receive_[p] += by;
      cost_ += potential_.receive_cost(receive_[p]);
      touched_.push_back(p);
    }
    send_delta_.clear();
    receive_delta_.clear();
    for (Part p : touched_) set_prices(p);
  }

  void set_prices(Part p) {
    price_[p] = potential_.send_price(send_[p]);
    receive_price_[p] = potential_.receive_price(receive_[p]);
    lowest_price_ = std::min(lowest_price_, price_[p]);
    highest_price_ = std::max(highest_price_, price_[p]);
    lowest_receive_price_ = std::min(lowest_receive_price_, receive_price_[p]);
    highest_receive_price_ = std::max(highest_receive_price_, receive_price_[p]);
  }

  const Hypergraph& h_;
  Part parts_;
  std::vector<Part> part_;
  PinCounts count_;
  std::vector<std::int64_t> send_, receive_;
  std::vector<double> price_, receive_price_;
  PartWeights weights_;
  std::vector<Change> send_delta_, receive_delta_;
  std::vector<Part> touched_;
  Potential potential_;
  std::int64_t total_ = 0;
  double cost_ = 0;
  double lowest_price_ = 0, highest_price_ = 0;
  double lowest_receive_price_ = 0, highest_receive_price_ = 0;
};

}  // namespace spgnn::gvb
