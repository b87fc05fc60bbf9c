// Volumes of parts while vertices move.
#pragma once

#include "graphs.hpp"

namespace spgnn::gvb {

// Φ(e, p): how many pins of net e lie in part p, kept only where it is positive.

// What a move looks up about a net lies in one record. A net with at least k pins has a bit per
// part, and k counters; a smaller one a short list of (part, count) in 32 bits: 16 for either up to
// 65,536 parts, else what is left for the count; with more pins than that, k counters as well.
class PinCounts {
 public:
  static constexpr Part kMaxParts = 1 << 20;

  struct Record {
    i64 begin;
    i32 lambda;
    i32 weight;
    Vertex root;
    Part root_part;
  };

  PinCounts(const Hypergraph& h, const std::vector<Part>& part, Part parts)
      : parts_(parts), words_((parts + 31) / 32),
        shift_(std::min(16, std::countl_zero(static_cast<u32>(parts - 1)))),
        record_(static_cast<std::size_t>(h.num_nets()) + 1) {
    const i64 most_listed = std::min<i64>(parts, 1 << shift_);
    i64 begin = 0;
    for (Net e = 0; e < h.num_nets(); ++e) {
      record_[e] = {begin, 0, h.net_weight[e], h.root(e), part[h.root(e)]};
      any_dense_ |= h.size(e) >= most_listed;
      begin += h.size(e) < most_listed ? h.size(e) : words_ + parts;
    }
    record_[h.num_nets()].begin = begin;
    pool_.assign(begin, 0);
    for (Net e = 0; e < h.num_nets(); ++e) {
      for (Vertex v : h.pins_of(e)) add(e, part[v]);
    }
  }

  const Record& net(Net e) const { return record_[e]; }
  void prefetch(Net e) const { __builtin_prefetch(&record_[e]); }
  i32 lambda(Net e) const { return record_[e].lambda; }
  void set_root_part(Net e, Part p) { record_[e].root_part = p; }

  // Both return the count before.
  u32 add(Net e, Part p) {
    u32* list = pool_.data() + record_[e].begin;
    i32& lambda = record_[e].lambda;
    if (dense(e)) {
      const u32 before = list[words_ + p]++;
      if (before == 0) {
        ++lambda;
        list[p / 32] |= 1u << p % 32;
      }
      return before;
    }
    for (i32 i = 0; i < lambda; ++i) {
      if (list[i] >> shift_ == static_cast<u32>(p)) return count_in(list[i]++);
    }
    list[lambda++] = one_pin_in(p);
    return 0;
  }

  u32 remove(Net e, Part p) {
    u32* list = pool_.data() + record_[e].begin;
    i32& lambda = record_[e].lambda;
    if (dense(e)) {
      const u32 before = list[words_ + p]--;
      if (before == 1) {
        --lambda;
        list[p / 32] &= ~(1u << p % 32);
      }
      return before;
    }
    i32 i = 0;
    while (list[i] >> shift_ != static_cast<u32>(p)) ++i;
    const u32 before = count_in(list[i]--);
    if (before == 1) list[i] = list[--lambda];
    return before;
  }

  bool any_dense() const { return any_dense_; }
  bool dense(Net e) const { return record_[e + 1].begin - record_[e].begin > parts_; }
  // Whether a dense net has pins in part p.
  bool dense_in(Net e, Part p) const { return pool_[record_[e].begin + p / 32] >> p % 32 & 1; }

  // Whether part p holds exactly one pin of the net.
  bool lone(Net e, Part p) const {
    const u32* list = pool_.data() + record_[e].begin;
    if (dense(e)) return list[words_ + p] == 1;
    return std::find(list, list + record_[e].lambda, one_pin_in(p)) != list + record_[e].lambda;
  }

  // Calls f(p) for every part of the net.
  template <class F> void for_parts(Net e, F&& f) const { visit_parts(e, 0, f); }

  // The same; whether part `own` holds exactly one pin is found on the way.
  template <class F> bool visit_parts(Net e, Part own, F&& f) const {
    const u32* list = pool_.data() + record_[e].begin;
    if (dense(e)) {
      for (Part i = 0; i < words_; ++i) {
        for (u32 bits = list[i]; bits != 0; bits &= bits - 1) {
          f(32 * i + std::countr_zero(bits));
        }
      }
      return list[words_ + own] == 1;
    }
    bool lone = false;
    for (const u32 *entry = list, *end = list + record_[e].lambda; entry != end; ++entry) {
      lone |= *entry == one_pin_in(own);
      f(static_cast<Part>(*entry >> shift_));
    }
    return lone;
  }

 private:
  u32 one_pin_in(Part p) const { return static_cast<u32>(p) << shift_ | 1; }
  u32 count_in(u32 entry) const { return entry & ((1u << shift_) - 1); }

  Part parts_, words_;
  bool any_dense_ = false;
  int shift_;                   // bits of a count in a list
  std::vector<Record> record_;  // one more than nets
  std::vector<u32> pool_;
};

// What a partition is judged by: total volume, and a price that rises with a part's own volume.

// Part p with send volume S costs S + α·T/β·(S/T)^β: with T the average and β = 8, parts pay the
// more the farther above T (after Acer, Selvitopi, Aykanat 2016); with T the maximum and β = 64
// only those close to it. Received rows, where they count, have the same price above the volume.
struct Potential {
  double alpha = 0.0;
  double reference = 1.0;
  bool receives = false;
  int squarings = 3;  // β = 2^squarings
  double knee =
      std::numeric_limits<double>::infinity();  // the price is constant from S = knee·T on

  double send_cost(i64 s) const { return static_cast<double>(s) + peak_cost(s); }
  double send_price(i64 s) const { return 1.0 + peak_price(s); }
  bool prices_receive() const { return receives && alpha > 0; }
  double receive_cost(i64 r) const { return receives ? peak_cost(r) : 0.0; }
  double receive_price(i64 r) const { return receives ? peak_price(r) : 0.0; }
  double peak_cost(i64 volume) const { return alpha * excess(volume); }
  double peak_price(i64 volume) const { return alpha * slope(volume); }

  // No row costs more than `extra` above its one row.
  void limit_price(double extra) {
    if (alpha > 0) knee = std::pow(extra / alpha, 1.0 / ((1 << squarings) - 1));
  }

 private:
  double excess(i64 volume) const {
    const double x = static_cast<double>(volume) / reference, bent = std::min(x, knee);
    return reference * power(bent) * (bent / (1 << squarings) + (x - bent));
  }
  double slope(i64 volume) const {
    return power(std::min(static_cast<double>(volume) / reference, knee));
  }
  // x^(β − 1)
  double power(double x) const {
    double product = x;
    for (int i = 1; i < squarings; ++i) {
      x *= x;
      product *= x;
    }
    return product;
  }
};

// Weights of parts with a price from a little below the bounds on: what fills a part to a bound
// costs per unit as if the whole cost `rows`. Else parts that send much keep all the room.
class PricedWeights : public PartWeights {
 public:
  PricedWeights(const WeightedVertices& vertices, const std::vector<Part>& part, Part parts)
      : PartWeights(vertices, part, parts), vertices_(vertices), parts_(parts) {}

  // Without bounds weight costs nothing.
  void set_price(const Bound& bounds, double rows) {
    bounds_ = bounds;
    priced_ = bounds.size() / parts_;
    rows_ = rows;
    price_.assign(bounds.size(), 0.0);
    for (Part p = 0; p < parts_; ++p) set_prices(p);
  }

  // What the weight of v costs in part p, at present prices.
  double price(Vertex v, Part p) const {
    double price = 0;
    const std::size_t m = priced_;
    for (std::size_t c = 0; c < m; ++c) {
      price += price_[p * m + c] * static_cast<double>(vertices_.vertex_weight[v * m + c]);
    }
    return price;
  }

  double cost(Part p) const {
    double cost = 0;
    for (std::size_t c = 0; c < priced_; ++c) {
      cost += rows_ * kPriced / 2 * fullness(p, c) * fullness(p, c);
    }
    return cost;
  }

  void move(Vertex v, Part from, Part to) {
    PartWeights::move(v, from, to);
    set_prices(from);
    set_prices(to);
  }

 private:
  static constexpr double kPriced = 0.06;  // share of a bound below it that has a price

  double bound_of(Part p, std::size_t c) const {
    return static_cast<double>(std::max<i64>(1, bounds_[p * priced_ + c]));
  }
  // How far the weight of a part is between where it begins to cost and the bound.
  double fullness(Part p, std::size_t c) const {
    const double bound = bound_of(p, c);
    const double free = bound - static_cast<double>((*this)(p, static_cast<int>(c)));
    return std::max(0.0, 1 - free / (kPriced * bound));
  }

  void set_prices(Part p) {
    for (std::size_t c = 0; c < priced_; ++c) {
      price_[p * priced_ + c] = rows_ / bound_of(p, c) * fullness(p, c);
    }
  }

  const WeightedVertices& vertices_;
  Part parts_;
  Bound bounds_;
  std::size_t priced_ = 0;  // constraints whose weight has a price
  double rows_ = 0;
  std::vector<double> price_;  // [parts × constraints]
};

class VolumeState {
 public:
  VolumeState(const Hypergraph& h, std::vector<Part> part, Part parts, Nodes nodes = {})
      : h_(h), parts_(parts), nodes_(nodes), part_(std::move(part)), count_(h, part_, parts),
        send_(parts, 0), receive_(parts, 0), price_(parts, 1.0), receive_price_(parts, 0.0),
        weights_(h, part_, parts) {
    if (nodes_.matter()) {
      count_between_nodes();
      set_potential({});
      return;
    }
    for (Net e = 0; e < h.num_nets(); ++e) {
      const Part root = part_[h.root(e)];
      const i64 w = h.net_weight[e];
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

  i64 total() const { return total_; }
  const std::vector<i64>& send() const { return send_; }
  const std::vector<i64>& receive() const { return receive_; }
  i64 max_send() const { return *std::max_element(send_.begin(), send_.end()); }
  i64 max_receive() const { return *std::max_element(receive_.begin(), receive_.end()); }
  // What the part with most of it sends, or sends or receives where that counts too.
  i64 busiest(bool receives) const { return std::max(max_send(), receives ? max_receive() : 0); }
  // Of nodes: rows that leave and enter each, counted as `outside` rows; none without nodes.
  const std::vector<i64>& node_send() const { return node_send_.volume; }
  const std::vector<i64>& node_receive() const { return node_receive_.volume; }
  i64 busiest_node(bool receives) const {
    if (!nodes_.matter()) return 0;
    const i64 most = std::ranges::max(node_send());
    return receives ? std::max(most, std::ranges::max(node_receive())) : most;
  }
  const PartWeights& weights() const { return weights_; }

  // Nodes have a potential of their own, without the rows themselves, which their parts pay for.
  void set_potential(const Potential& potential, const Potential& of_nodes = {}) {
    potential_ = potential;
    node_potential_ = of_nodes;
    cost_ = 0;
    weights_.set_price({}, 0);
    lowest_price_ = lowest_receive_price_ = std::numeric_limits<double>::max();
    highest_price_ = highest_receive_price_ = 0;
    if (nodes_.matter()) cost_ += static_cast<double>(total_);
    for (Part p = 0; p < parts_; ++p) {
      cost_ += send_cost(p) + potential_.receive_cost(receive_[p]);
      set_prices(p);
    }
    for (Part node = 0; node < std::ssize(node_send()); ++node) {
      cost_ += node_cost(node);
      set_node_prices(node);
    }
  }
  const Potential& potential() const { return potential_; }

  // Weight costs as well; see PricedWeights.
  void price_weights(const Bound& bounds, double rows) {
    weights_.set_price(bounds, rows);
    for (Part p = 0; p < parts_; ++p) cost_ += weights_.cost(p);
  }

  // What the weight of v costs in part p, at present prices.
  double load_price(Vertex v, Part p) const { return weights_.price(v, p); }

  double cost() const { return cost_; }
  // What one more row sent (received) by a part costs now.
  double price(Part p) const { return price_[p]; }
  double receive_price(Part p) const { return receive_price_[p]; }
  const double* prices() const { return price_.data(); }
  const double* receive_prices() const { return receive_price_.data(); }
  bool only_sends_cost() const {
    return h_.num_scatter == h_.num_nets() && !potential_.prices_receive();
  }

  const Nodes& nodes() const { return nodes_; }
  Part node(Part p) const { return node_of_[p]; }
  // Of a row that a part sends to (receives from) another node, that node's share left out.
  double outside_price(Part p) const {
    return 1 + nodes_.outside * (price_[p] - 1 + node_send_.price[node_of_[p]]);
  }
  double outside_receive_price(Part p) const {
    return nodes_.outside * (receive_price_[p] + node_receive_.price[node_of_[p]]);
  }
  // How much a part is priced above its rows, its node included.
  double pressure(Part p) const {
    double sum = price_[p] + receive_price_[p];
    if (nodes_.matter()) sum += node_send_.price[node_of_[p]] + node_receive_.price[node_of_[p]];
    return sum;
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
      if (nodes_.matter()) {
        move_between_nodes(e, v, to);
        continue;
      }
      const i64 w = count_.net(e).weight;
      auto& at_root = scattered(e) ? send_delta_ : receive_delta_;
      auto& at_others = scattered(e) ? receive_delta_ : send_delta_;
      const i64 lambda = count_.lambda(e);
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
    cost_ -= weights_.cost(from) + weights_.cost(to);
    weights_.move(v, from, to);
    cost_ += weights_.cost(from) + weights_.cost(to);
    if (nodes_.matter()) collect_changes();
    settle();
  }

 private:
  using Change = std::pair<Part, i64>;

  // Volumes of nodes in one direction, what a row costs there, and changes not yet settled.
  struct NodeVolumes {
    std::vector<i64> volume, change;
    std::vector<double> price;
  };

  void count_between_nodes() {
    const Part nodes = parts_ / nodes_.size;
    for (auto* volumes : {&node_send_, &node_receive_}) {
      *volumes = {std::vector<i64>(nodes, 0), std::vector<i64>(nodes, 0),
                  std::vector<double>(nodes, 0.0)};
    }
    node_of_.resize(parts_);
    for (Part p = 0; p < parts_; ++p) node_of_[p] = p / nodes_.size;
    part_change_[0].assign(parts_, 0);
    part_change_[1].assign(parts_, 0);
    for (Net e = 0; e < h_.num_nets(); ++e) count_pairs(e, 1);
    collect_changes();
    settle();
  }

  // Counts (or with sign -1 forgets) what one net makes the part of its root and another exchange.
  void count_pair(Net e, Part other, int sign) {
    const Part root = count_.net(e).root_part;
    if (other == root) return;
    const Part sender = scattered(e) ? root : other, receiver = scattered(e) ? other : root;
    i64 rows = sign * count_.net(e).weight;
    if (node_of_[sender] != node_of_[receiver]) {
      rows *= nodes_.outside;
      change_node(node_send_, node_of_[sender], rows);
      change_node(node_receive_, node_of_[receiver], rows);
    }
    total_ += sign * count_.net(e).weight;
    cost_ += sign * count_.net(e).weight;
    change_part(0, sender, rows);
    change_part(1, receiver, rows);
  }
  void count_pairs(Net e, int sign) {
    count_.for_parts(e, [&](Part p) { count_pair(e, p, sign); });
  }

  void change_node(NodeVolumes& volumes, Part node, i64 rows) {
    if (node_send_.change[node] == 0 && node_receive_.change[node] == 0) {
      touched_nodes_.push_back(node);
    }
    volumes.change[node] += rows;
  }
  void change_part(int direction, Part p, i64 rows) {
    if (part_change_[direction][p] == 0) changed_parts_[direction].push_back(p);
    part_change_[direction][p] += rows;
  }

  void move_between_nodes(Net e, Vertex v, Part to) {
    const Part from = part_[v];
    const bool is_root = count_.net(e).root == v;
    if (is_root) count_pairs(e, -1);
    const bool leaves = count_.remove(e, from) == 1;
    const bool enters = count_.add(e, to) == 0;
    if (is_root) {
      count_.set_root_part(e, to);
      count_pairs(e, 1);
      return;
    }
    if (leaves) count_pair(e, from, -1);
    if (enters) count_pair(e, to, 1);
  }

  // Makes the changes of parts ready to be settled, each part's in one.
  void collect_changes() {
    for (int direction : {0, 1}) {
      auto& deltas = direction == 0 ? send_delta_ : receive_delta_;
      for (Part p : changed_parts_[direction]) {
        const i64 rows = std::exchange(part_change_[direction][p], 0);
        if (rows != 0) deltas.push_back({p, rows});
      }
      changed_parts_[direction].clear();
    }
    for (Part node : touched_nodes_) {
      if (node_send_.change[node] == 0 && node_receive_.change[node] == 0) continue;
      cost_ -= node_cost(node);
      node_send_.volume[node] += std::exchange(node_send_.change[node], 0);
      node_receive_.volume[node] += std::exchange(node_receive_.change[node], 0);
      cost_ += node_cost(node);
      set_node_prices(node);
    }
    touched_nodes_.clear();
  }

  // With nodes, rows themselves are counted apart: all alike.
  double send_cost(Part p) const {
    return nodes_.matter() ? potential_.peak_cost(send_[p]) : potential_.send_cost(send_[p]);
  }

  double node_cost(Part node) const {
    return node_potential_.peak_cost(node_send_.volume[node]) +
           node_potential_.receive_cost(node_receive_.volume[node]);
  }
  void set_node_prices(Part node) {
    node_send_.price[node] = node_potential_.peak_price(node_send_.volume[node]);
    node_receive_.price[node] = node_potential_.receive_price(node_receive_.volume[node]);
  }

  void settle() {
    for (auto [p, by] : send_delta_) {
      cost_ -= send_cost(p);
      send_[p] += by;
      cost_ += send_cost(p);
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
  Nodes nodes_;
  std::vector<Part> part_;
  PinCounts count_;
  std::vector<Part> node_of_;  // of each part; this and what follows is empty without nodes
  NodeVolumes node_send_, node_receive_;
  std::array<std::vector<i64>, 2> part_change_;  // not yet settled: sent, received
  std::array<std::vector<Part>, 2> changed_parts_;
  std::vector<Part> touched_nodes_;
  Potential node_potential_;
  std::vector<i64> send_, receive_;
  std::vector<double> price_, receive_price_;
  PricedWeights weights_;
  std::vector<Change> send_delta_, receive_delta_;
  std::vector<Part> touched_;
  Potential potential_;
  i64 total_ = 0;
  double cost_ = 0;
  double lowest_price_ = 0, highest_price_ = 0;
  double lowest_receive_price_ = 0, highest_receive_price_ = 0;
};

}  // namespace spgnn::gvb
