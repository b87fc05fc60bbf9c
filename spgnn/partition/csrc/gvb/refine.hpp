// Refinement by moves of vertices: the peak, Fiduccia-Mattheyses.
#pragma once

#include "cut_partition.hpp"
#include "rebalance.hpp"

namespace spgnn::gvb {

// Where refinement starts: the vertices whose move can pay.

// Those with a cut net; no other can gain by a move.
inline std::vector<Vertex> boundary(const VolumeState& state) {
  const Hypergraph& h = state.hypergraph();
  std::vector<Vertex> found;
  for (Vertex v = 0; v < h.num_vertices; ++v) {
    const auto nets = h.nets_of(v);
    if (std::any_of(nets.begin(), nets.end(),
                    [&](Net e) { return state.counts().lambda(e) > 1; })) {
      found.push_back(v);
    }
  }
  return found;
}

// Those of a border whose move can take a row off a part where a row costs more than `price`:
// its own vertices, and vertices elsewhere that alone make it send (or receive) a row.
inline std::vector<Vertex> near_expensive_parts(const VolumeState& state,
                                                const std::vector<Vertex>& border, double price) {
  const Hypergraph& h = state.hypergraph();
  const PinCounts& counts = state.counts();
  const auto expensive = [&](Part p) { return state.pressure(p) > price; };
  std::vector<Vertex> found;
  for (Vertex v : border) {
    const Part own = state.part(v);
    const bool inside = expensive(own);
    const auto relieves = [&](Net e) {
      const PinCounts::Record& net = counts.net(e);
      return net.lambda > 1 && (inside || (expensive(net.root_part) && counts.lone(e, own)));
    };
    const auto nets = h.nets_of(v);
    if (std::any_of(nets.begin(), nets.end(), relieves)) found.push_back(v);
  }
  return found;
}

// Localised k-way Fiduccia–Mattheyses search: climbs out of local minima, keeps the best prefix.

// Searches grow from a few boundary vertices each (Sanders & Schulz 2011); every move of a search
// is made, also a losing one, and undone at the end unless a later prefix paid for it.
class LocalSearch {
 public:
  LocalSearch(VolumeState& state, const Bound& max_weight, i32 patience, Random& random)
      : state_(state), finder_(state, max_weight), random_(random), patience_(patience),
        heap_(state.hypergraph().num_vertices), status_(state.hypergraph().num_vertices, kFree),
        stamp_(state.hypergraph().num_vertices, 0) {}

  // One pass from these vertices alone.
  void run(std::vector<Vertex> seeds, i64 budget) {
    budget_ = finder_.work() + budget;
    run_pass(std::move(seeds));
  }

  // Ends early once the searches have cost `budget` units of work.
  void run(int max_passes, i64 budget) {
    budget_ = finder_.work() + budget;
    for (int pass = 0; pass < max_passes && finder_.work() < budget_; ++pass) {
      const double before = state_.cost();
      run_pass(boundary(state_));
      if (state_.cost() > before * (1 - kWorthAPass)) break;
    }
  }

 private:
  enum Status : u8 { kFree, kSeen, kMoved };
  static constexpr std::size_t kSeeds = 8;
  static constexpr i64 kLargestNet = 128;
  static constexpr int kWidest = 32;  // vertices queued by one move
  static constexpr double kWorthAPass = 2e-3;
  static constexpr int kSteps = 16;  // of the budget: a pass ends with one that paid too little

  void run_pass(std::vector<Vertex> seeds) {
    std::fill(status_.begin(), status_.end(), kFree);
    random_.shuffle(seeds);
    std::size_t next = 0;
    double before = state_.cost();
    const i64 step = (budget_ - finder_.work()) / kSteps;
    i64 checked = finder_.work() + step;
    while (next < seeds.size() && finder_.work() < budget_) {
      if (finder_.work() > checked) {
        if (state_.cost() > before * (1 - kWorthAPass / kSteps)) return;
        before = state_.cost();
        checked += step;
      }
      for (std::size_t found = 0; next < seeds.size() && found < kSeeds; ++next) {
        if (status_[seeds[next]] != kFree) continue;
        queue(seeds[next]);
        ++found;
      }
      search();
    }
  }

  void search() {
    moves_.clear();
    std::size_t best = 0;
    double best_cost = state_.cost();
    while (!heap_.empty() && moves_.size() < best + patience_) {
      const Vertex v = heap_.top();
      const Move move = finder_.best(v);
      if (move.to < 0) {
        heap_.remove(v);
        continue;
      }
      // Keys only fall behind; a stale one is put right when it comes up.
      if (move.gain < heap_.key(v) - 1e-9) {
        heap_.set(v, move.gain);
        if (heap_.top() != v) continue;
      }
      heap_.remove(v);
      moves_.push_back({v, state_.part(v)});
      status_[v] = kMoved;
      apply(v, move.to);
      if (state_.cost() < best_cost - 1e-7) {
        best_cost = state_.cost();
        best = moves_.size();
      }
    }
    for (; moves_.size() > best; moves_.pop_back()) {
      state_.move(moves_.back().first, moves_.back().second);
      status_[moves_.back().first] = kSeen;
    }
    heap_.clear();
  }

  // Moves v and queues the vertices whose gain this can have raised.
  void apply(Vertex v, Part to) {
    const Part from = state_.part(v);
    state_.move(v, to);
    const Hypergraph& h = state_.hypergraph();
    ++now_;
    int queued = 0;
    for (Net e : h.nets_of(v)) {
      if (h.size(e) > kLargestNet) continue;
      const bool entered = state_.counts().lone(e, to);
      const bool lone = state_.counts().lone(e, from);
      if (!entered && !lone) continue;
      for (Vertex u : h.pins_of(e)) {
        if (status_[u] == kMoved || stamp_[u] == now_) continue;
        if (!entered && state_.part(u) != from) continue;
        stamp_[u] = now_;
        queue(u);
        if (++queued == kWidest) return;
      }
    }
  }

  void queue(Vertex v) {
    const Move move = finder_.best(v);
    if (status_[v] == kFree) status_[v] = kSeen;
    if (move.to >= 0) heap_.set(v, move.gain);
  }

  VolumeState& state_;
  MoveFinder finder_;
  Random& random_;
  std::size_t patience_;
  i64 budget_ = 0;
  VertexHeap<double> heap_;
  std::vector<u8> status_;
  std::vector<i32> stamp_;
  i32 now_ = 0;
  std::vector<std::pair<Vertex, Part>> moves_;
};

// Takes volume off the busiest parts, by moves that make room for themselves.

// Where weights are tight no single move fits. Here a vertex moves anyway, and its new part sends
// vertices on until it is within its bound; the chain stays if it lowered the cost.
class Reliever {
 public:
  Reliever(VolumeState& state, const Bound& max_weight)
      : state_(state), max_weight_(max_weight), finder_(state, max_weight) {}

  // Goes through the parts by falling volume, as long as that helps and the budget lasts.
  void run(i64 budget) {
    const Part tried_at_once = std::min(state_.parts(), std::max<Part>(2, state_.parts() / 4));
    list_members();
    std::vector<Part> order(state_.parts());
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < kRounds; ++round) {
      std::stable_sort(order.begin(), order.end(),
                       [&](Part a, Part b) { return state_.pressure(a) > state_.pressure(b); });
      bool helped = false;
      for (Part i = 0; i < tried_at_once; ++i) {
        if (finder_.work() > budget) return;
        helped |= relieve(order[i]);
      }
      if (!helped) return;
    }
  }

 private:
  static constexpr int kRounds = 24;
  static constexpr std::size_t kCandidates = 6, kChain = 48;

  struct Candidate {
    double key;
    Vertex v;
    Part to;
  };

  void list_members() {
    members_.assign(state_.parts(), {});
    for (Vertex v = 0; v < state_.hypergraph().num_vertices; ++v) {
      members_[state_.part(v)].push_back(v);
    }
  }

  // Members of p; those that have left since are dropped on the way.
  const std::vector<Vertex>& members(Part p) {
    std::erase_if(members_[p], [&](Vertex v) { return state_.part(v) != p; });
    return members_[p];
  }

  bool relieve(Part p) {
    std::vector<Candidate> best;
    for (Vertex v : members(p)) {
      if (finder_.hopeless(v)) continue;
      const Move move = finder_.best_anywhere(v);
      if (move.to >= 0 && move.gain > 0) best.push_back({move.gain, v, move.to});
    }
    keep_largest(best, kCandidates);
    for (const Candidate& candidate : best) {
      const double before = state_.cost();
      chain_.clear();
      make(candidate.v, candidate.to);
      if (make_room(candidate.to, candidate.v) && state_.cost() < before) {
        for (const auto& [v, from] : chain_) members_[state_.part(v)].push_back(v);
        return true;
      }
      for (; !chain_.empty(); chain_.pop_back()) {
        state_.move(chain_.back().first, chain_.back().second);
      }
    }
    return false;
  }

  // Sends vertices from q to parts with room, cheapest first per weight, until q keeps its bound.
  bool make_room(Part q, Vertex newcomer) {
    if (within(q)) return true;
    std::vector<Candidate> leaving;
    for (Vertex u : members(q)) {
      const Move move = finder_.best(u);
      const double share = share_of(u, q);
      if (u == newcomer || move.to < 0 || share <= 0) continue;
      leaving.push_back({move.gain >= 0 ? move.gain : move.gain / share, u, move.to});
    }
    keep_largest(leaving, kChain);
    for (const Candidate& candidate : leaving) {
      if (!finder_.fits(candidate.v, candidate.to)) continue;
      make(candidate.v, candidate.to);
      if (within(q)) return true;
    }
    return false;
  }

  static void keep_largest(std::vector<Candidate>& candidates, std::size_t count) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.key > b.key; });
    candidates.resize(std::min(candidates.size(), count));
  }

  void make(Vertex v, Part to) {
    chain_.push_back({v, state_.part(v)});
    state_.move(v, to);
  }

  bool within(Part p) const { return state_.weights().within(p, max_weight_); }

  // How much of the bounds of part q the weight of v takes up, summed.
  double share_of(Vertex v, Part q) const {
    double sum = 0;
    const auto weight = state_.hypergraph().weight_of(v);
    const i64* most = max_weight_.data() + q * weight.size();
    for (std::size_t c = 0; c < weight.size(); ++c) {
      sum += static_cast<double>(weight[c]) / static_cast<double>(std::max<i64>(1, most[c]));
    }
    return sum;
  }

  VolumeState& state_;
  const Bound& max_weight_;
  MoveFinder finder_;
  std::vector<std::vector<Vertex>> members_;
  std::vector<std::pair<Vertex, Part>> chain_;  // vertices moved, and where they were
};

// Moves that lower volumes, as GreedyRefiner wants them. Threads find the best moves of a batch
// before the first is made; a vertex whose part was full by then looks again.

class VolumeMoves {
 public:
  static constexpr bool kQueuedAtFirst = false;

  VolumeMoves(VolumeState& state, const Bound& max_weight, int threads)
      : state_(state), finders_(std::max(1, threads), MoveFinder(state, max_weight)),
        foreseen_(state.hypergraph().num_vertices, -1) {}

  std::vector<Vertex> boundary() const { return gvb::boundary(state_); }

  void begin_round() { before_ = state_.cost(); }
  bool end_round() const {
    constexpr double kWorthARound = 0.02;
    return state_.cost() <= before_ * (1 - kWorthARound);
  }

  void foresee(std::span<const Vertex> vertices) {
    constexpr i64 kChunk = 16;
    const i64 chunks = (std::ssize(vertices) + kChunk - 1) / kChunk;
    const int threads =
        worth_starting(static_cast<int>(finders_.size()), state_.hypergraph(), vertices);
    parallel_chunks(chunks, threads, [&](i64 c, int thread) {
      const i64 end = std::min((c + 1) * kChunk, std::ssize(vertices));
      for (i64 i = c * kChunk; i < end; ++i) {
        foreseen_[vertices[i]] = paying_move(vertices[i], finders_[thread]).to;
      }
    });
  }

  Part try_move(Vertex v) {
    Part to = foreseen_[v];
    if (to >= 0 && !finders_[0].fits(v, to)) to = paying_move(v, finders_[0]).to;
    if (to < 0) return -1;
    const Part from = state_.part(v);
    const double before = state_.cost();
    state_.move(v, to);
    if (state_.cost() < before) return from;
    state_.move(v, from);
    return -1;
  }

  template <class Visit> void for_affected(Vertex v, Part from, const Visit& visit) const {
    gvb::for_affected(state_, v, from, visit);
  }

 private:
  static Move paying_move(Vertex v, MoveFinder& finder) {
    if (finder.hopeless(v)) return {};
    const Move move = finder.best(v);
    return move.gain > 1e-9 ? move : Move{};
  }

  VolumeState& state_;
  std::vector<MoveFinder> finders_;  // of each thread
  std::vector<Part> foreseen_;       // where a vertex should go, -1: nowhere
  double before_ = 0;
};

// How much the maximum counts beside the average: little before the last stage.
constexpr double kOnTheWay = 0.2, kInTheEnd = 1.0;
// How much the busiest node counts beside the busiest part. Its rows are those of its parts anyway.
constexpr double kNodeShare = 0.3;

using Score = std::pair<i64, double>;  // overload first, then volume

// With nodes, volumes of parts count rows to other nodes several times.
template <class State> double rows_per_unit(const State& state) {
  const double units = std::accumulate(state.send().begin(), state.send().end(), 0.0);
  return units > 0 ? static_cast<double>(state.total()) / units : 1.0;
}

// Total + weight · k · maximum, with nodes a mean of that over parts and over nodes.
template <class State>
Score score(const State& state, const Options& options, double weight = kOnTheWay) {
  const auto total = static_cast<double>(state.total());
  auto highest = static_cast<double>(state.busiest(options.receive)) * options.parts;
  if (options.nodes.matter()) {
    const auto of_node = static_cast<double>(state.busiest_node(options.receive));
    const double all_nodes = of_node * options.parts / options.nodes.size;
    highest = (highest + kNodeShare * all_nodes) / (1 + kNodeShare) * rows_per_unit(state);
  }
  return {state.weights().overload(options.max_weight), total + weight * highest};
}

// Units of work that one search may cost.
inline i64 search_budget(const Hypergraph& h, const Options& options) {
  return options.search_budget * std::ssize(h.pins);
}

// Parts pay more than their rows from about the average on; where the maximum is far above that,
// only from its neighbourhood on, since then few parts can be kept from paying.
template <class State>
void price_volumes(State& state, const Bound& bounds, const Options& options, double alpha) {
  constexpr double kReach = 1.25;
  const auto priced = [&](const std::vector<i64>& sends, i64 busiest, double share) {
    const double all = std::accumulate(sends.begin(), sends.end(), 0.0);
    const auto count = static_cast<double>(std::max<std::size_t>(1, sends.size()));
    Potential potential;
    potential.alpha = share * alpha * rows_per_unit(state);
    potential.receives = options.receive;
    potential.reference = std::max({1.0, all / count, static_cast<double>(busiest) / kReach});
    potential.limit_price(count);
    return potential;
  };
  state.set_potential(priced(state.send(), state.busiest(options.receive), 1.0),
                      priced(state.node_send(), state.busiest_node(options.receive), kNodeShare));
  const double average = std::max(1.0, static_cast<double>(state.total()) / options.parts);
  state.price_weights(bounds, options.load * average);
}

// The price of the score: rows of parts close to the maximum cost more, kPress · k together.
template <class State> void price_peaks(State& state, const Bound& bounds, const Options& options) {
  constexpr double kPress = 3;
  const auto priced = [&](const std::vector<i64>& sends, const std::vector<i64>& receives,
                          i64 busiest, double press) {
    Potential potential;
    potential.squarings = 6;
    potential.receives = options.receive;
    potential.reference = std::max<double>(1, static_cast<double>(busiest));
    double slopes = 0;
    const auto add_slopes = [&](const std::vector<i64>& volumes) {
      for (i64 volume : volumes) {
        slopes += std::pow(static_cast<double>(volume) / potential.reference, 63);
      }
    };
    add_slopes(sends);
    if (options.receive) add_slopes(receives);
    potential.alpha =
        press * static_cast<double>(sends.size()) / std::max(1.0, slopes) * rows_per_unit(state);
    return potential;
  };
  state.set_potential(priced(state.send(), state.receive(), state.busiest(options.receive), kPress),
                      priced(state.node_send(), state.node_receive(),
                             state.busiest_node(options.receive), kNodeShare * kPress));
  const double average = static_cast<double>(state.total()) / options.parts;
  state.price_weights(bounds, options.peak_load * average);
}

enum class Aim { kVolume, kMaximum };

// Refines the labels of one level. For the volume, parts above average pay the more the finer the
// level, and only on the finest moves go against their gain; for the maximum on every level.
inline std::vector<Part> refine_volumes(const Hypergraph& h, std::vector<Part> labels,
                                        const Bound& bounds, bool finest, Aim aim,
                                        const Options& options, Random& random) {
  VolumeState state(h, std::move(labels), options.parts, options.nodes);
  if (aim == Aim::kMaximum) {
    price_peaks(state, bounds, options);
  } else {
    price_volumes(state, bounds, options, finest ? options.alpha_fine : options.alpha_coarse);
  }
  Rebalancer(state, bounds).run();
  GreedyRefiner<VolumeMoves>({state, bounds, options.threads}, h.num_vertices, random)
      .run(options.greedy_rounds);
  LocalSearch(state, bounds, options.patience, random)
      .run(finest || aim == Aim::kMaximum ? options.search_passes : options.coarse_search_passes,
           search_budget(h, options));
  return std::move(state).take_labels();
}

inline bool is_even(const VolumeState& state, const Options& options) {
  const auto even = [&](const std::vector<i64>& sends, i64 busiest) {
    const double all = std::accumulate(sends.begin(), sends.end(), 0.0);
    return static_cast<double>(busiest) * static_cast<double>(sends.size()) <= options.even * all;
  };
  return even(state.send(), state.busiest(options.receive)) &&
         even(state.node_send(), state.busiest_node(options.receive));
}

// Lowers the maximum of the finest level by moves that take rows off a part with a price.
template <class BeforeRound>
std::vector<Part> lower_peaks(const Hypergraph& h, std::vector<Part> labels, const Options& options,
                              Random& random, const BeforeRound& before_round) {
  constexpr double kNoticed = 1.2;  // a price; without a peak 1
  const i64 work = 3 * search_budget(h, options);
  constexpr double kWorthARound = 2e-3;
  constexpr int kInVain = 2;  // rounds
  VolumeState state(h, labels, options.parts, options.nodes);
  const Score before = score(state, options, kInTheEnd);
  const std::vector<Vertex> border = boundary(state);
  Score now = before;
  int in_vain = 0;
  for (int round = 0; round < options.peak_rounds && !is_even(state, options); ++round) {
    before_round();
    price_peaks(state, options.max_weight, options);
    Reliever(state, options.max_weight).run(work);
    GreedyRefiner<VolumeMoves>({state, options.max_weight, options.threads}, h.num_vertices, random)
        .run(1, near_expensive_parts(state, border, kNoticed));
    if (options.search_passes > 0) {
      LocalSearch(state, options.max_weight, options.patience, random)
          .run(near_expensive_parts(state, border, kNoticed), work);
    }
    const Score last = std::exchange(now, score(state, options, kInTheEnd));
    if (now.second > last.second * (1 - kWorthARound) && ++in_vain == kInVain) break;
  }
  return now < before ? std::move(state).take_labels() : std::move(labels);
}

}  // namespace spgnn::gvb
