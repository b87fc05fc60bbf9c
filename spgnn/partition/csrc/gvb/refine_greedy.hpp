// Greedy k-way refinement, whatever a move costs: rounds over the vertices whose surroundings
// changed. What moves cost is a `Moves`: CutMoves of cut_partition.hpp for the cut of graphs,
// VolumeMoves of volume_moves.hpp for the volumes of hypergraphs.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "random.hpp"
#include "vertices.hpp"

namespace spgnn::gvb {

// Moves each vertex to its best part if that pays; after the first round only vertices next to a
// move are looked at again. A Moves has
//   bool kQueuedAtFirst             whether vertices that are still to come in the first round
//   count
//                                   as queued, or else may be queued for the second one as well
//   std::vector<Vertex> boundary()  the vertices whose move can pay
//   void begin_round(), bool end_round()   the latter says whether the round paid for another
//   Part try_move(v)                makes the best move of v, if that pays; the part it left, or −1
//   void for_affected(v, from, f)   calls f(u) for the vertices whose gain that can have raised
template <class Moves>
class GreedyRefiner {
 public:
  GreedyRefiner(Moves moves, Vertex num_vertices, Random& random)
      : moves_(std::move(moves)), random_(random), queued_(num_vertices, 0) {}

  void run(int max_rounds) { run(max_rounds, moves_.boundary()); }

  // The first round looks at the vertices of `active` alone.
  void run(int max_rounds, std::vector<Vertex> active) {
    for (Vertex v : active) queued_[v] = Moves::kQueuedAtFirst;
    for (int round = 0; round < max_rounds && !active.empty(); ++round) {
      random_.shuffle(active);
      moves_.begin_round();
      std::vector<Vertex> next;
      for (Vertex v : active) {
        queued_[v] = 0;
        const Part from = moves_.try_move(v);
        if (from < 0) continue;
        moves_.for_affected(v, from, [&](Vertex u) {
          if (queued_[u]) return;
          queued_[u] = 1;
          next.push_back(u);
        });
      }
      active = std::move(next);
      if (!moves_.end_round()) break;
    }
    for (Vertex v : active) queued_[v] = 0;
  }

 private:
  Moves moves_;
  Random& random_;
  std::vector<std::uint8_t> queued_;
};

}  // namespace spgnn::gvb
