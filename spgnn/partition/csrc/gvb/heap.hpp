// A binary heap of vertices whose keys can change.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "hypergraph.hpp"

namespace spgnn::gvb {

template <class Key>
class VertexHeap {
 public:
  explicit VertexHeap(Vertex n) : place_(n, -1), key_(n) {}

  bool empty() const { return heap_.empty(); }
  bool contains(Vertex v) const { return place_[v] >= 0; }
  Vertex top() const { return heap_[0]; }
  Key key(Vertex v) const { return key_[v]; }

  // Inserts a vertex or changes its key.
  void set(Vertex v, Key key) {
    if (contains(v)) {
      const bool up = key_[v] < key;
      key_[v] = key;
      up ? rise(place_[v]) : sink(place_[v]);
      return;
    }
    key_[v] = key;
    heap_.push_back(v);
    place_[v] = static_cast<std::int32_t>(heap_.size()) - 1;
    rise(place_[v]);
  }

  void remove(Vertex v) {
    const std::int32_t i = place_[v];
    const Vertex last = heap_.back();
    heap_.pop_back();
    place_[v] = -1;
    if (last == v) return;
    put(last, i);
    rise(i);
    sink(place_[last]);
  }

  void clear() {
    for (Vertex v : heap_) place_[v] = -1;
    heap_.clear();
  }

 private:
  void put(Vertex v, std::int32_t i) {
    heap_[i] = v;
    place_[v] = i;
  }

  void rise(std::int32_t i) {
    const Vertex v = heap_[i];
    while (i > 0 && key_[heap_[(i - 1) / 2]] < key_[v]) {
      put(heap_[(i - 1) / 2], i);
      i = (i - 1) / 2;
    }
    put(v, i);
  }

  void sink(std::int32_t i) {
    const Vertex v = heap_[i];
    const auto size = static_cast<std::int32_t>(heap_.size());
    for (std::int32_t child = 2 * i + 1; child < size; child = 2 * i + 1) {
      if (child + 1 < size && key_[heap_[child]] < key_[heap_[child + 1]]) ++child;
      if (!(key_[v] < key_[heap_[child]])) break;
      put(heap_[child], i);
      i = child;
    }
    put(v, i);
  }

  std::vector<Vertex> heap_;
  std::vector<std::int32_t> place_;
  std::vector<Key> key_;
};

}  // namespace spgnn::gvb
