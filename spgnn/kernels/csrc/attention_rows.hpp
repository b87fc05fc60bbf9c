// Rows of attention: heads in lanes, packed rows of neighbours, running triples.
#pragma once

#include <type_traits>
#include <utility>

#include "rows_kernel.hpp"
#include "simd.hpp"
#include "types.hpp"

namespace spgnn::SPGNN_ISA {

// Heads in the lanes of vectors. Rows are packed [width][heads], heads padded to a power of two or
// a multiple of 16: one vector of weights serves all packs, and sums over widths need few shuffles.

// As many heads as a vector holds, or all if they are fewer.
template <class S, int kCount> struct PartOf {
  using type [[gnu::vector_size(kCount * sizeof(S))]] = S;
};
template <class S> struct PartOf<S, 1> {
  using type = S;
};
template <class S, int kCount> using Part = typename PartOf<S, kCount>::type;

template <class P, class S> [[gnu::always_inline]] inline P load_part(const S* p) {
  P part;
  std::memcpy(&part, p, sizeof(part));
  return part;
}

template <class P, class S> [[gnu::always_inline]] inline void store_part(S* p, const P& part) {
  std::memcpy(p, &part, sizeof(part));
}

// A part again and again, until a vector is full.
template <class S, int kCount, int... lane>
[[gnu::always_inline]] inline LanesOf<S> repeated(Part<S, kCount> part,
                                                  std::integer_sequence<int, lane...>) {
  if constexpr (kCount == 1) {
    return part + LanesOf<S>{};
  } else {
    return __builtin_shufflevector(part, part, (lane % kCount)...);
  }
}
template <class S, int kCount>
[[gnu::always_inline]] inline LanesOf<S> repeated(Part<S, kCount> part) {
  if constexpr (kCount == kLanesOf<S>) {
    return part;
  } else {
    return repeated<S, kCount>(part, std::make_integer_sequence<int, kLanesOf<S>>());
  }
}

template <class S, int kCount, class Vector, int... lane>
[[gnu::always_inline]] inline Part<S, kCount> folded(Vector v,
                                                     std::integer_sequence<int, lane...>) {
  constexpr int kHalf = sizeof...(lane);
  if constexpr (kHalf == 1) {
    return v[0] + v[1];
  } else {
    const auto sum =
        __builtin_shufflevector(v, v, lane...) + __builtin_shufflevector(v, v, (lane + kHalf)...);
    if constexpr (kHalf == kCount) {
      return sum;
    } else {
      return folded<S, kCount>(sum, std::make_integer_sequence<int, kHalf / 2>());
    }
  }
}
// The sums of all lanes that hold the same head.
template <class S, int kCount> [[gnu::always_inline]] inline Part<S, kCount> folded(LanesOf<S> v) {
  if constexpr (kCount == kLanesOf<S>) {
    return v;
  } else {
    return folded<S, kCount>(v, std::make_integer_sequence<int, kLanesOf<S> / 2>());
  }
}

// The first lanes of a vector, zeros after them.
template <class S> [[gnu::always_inline]] inline LanesOf<S> first_lanes(LanesOf<S> v, i64 lanes) {
  using Number = std::conditional_t<sizeof(S) == 4, i32, i64>;
  using Numbers [[gnu::vector_size(kVectorBytes)]] = Number;
  alignas(64) static constexpr Number kNumbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                      8, 9, 10, 11, 12, 13, 14, 15};
  const auto bound = static_cast<Number>(lanes < 16 ? lanes : 16);
  return load_vector<Numbers>(kNumbers) < bound + Numbers{} ? v : LanesOf<S>{};
}

// Hands out pieces of a kernel's memory, each from a cache line on.
class Room {
 public:
  explicit Room(char* memory) : at_((reinterpret_cast<std::uintptr_t>(memory) + 63) / 64 * 64) {}

  template <class Element> Element* take(i64 count) {
    auto* taken = reinterpret_cast<Element*>(at_);  // NOLINT(performance-no-int-to-ptr)
    at_ += (static_cast<std::uintptr_t>(count) * sizeof(Element) + 63) / 64 * 64;
    return taken;
  }
  template <class Element> Element* take_zeros(i64 count) {
    Element* taken = take<Element>(count);
    for (i64 i = 0; i < count; ++i) taken[i] = Element{};
    return taken;
  }

 private:
  std::uintptr_t at_;
};

// Calls f.operator()<kCount>(), kCount the heads of a part: all, or as many as a vector holds.
template <class S, int kCount = 1, class Function>
[[gnu::always_inline]] inline void by_heads(i64 padded, const Function& f) {
  if constexpr (kCount == kLanesOf<S>) {
    f.template operator()<kCount>();
  } else if (padded == kCount) {
    f.template operator()<kCount>();
  } else {
    by_heads<S, 2 * kCount>(padded, f);
  }
}

// Eight by eight numbers, rows to columns: each step is a perfect shuffle of all of them.
template <class S> void transpose_block(const S* from, i64 from_stride, S* to, i64 to_stride) {
  using Eight [[gnu::vector_size(8 * sizeof(S))]] = S;
  Eight x[8], y[8];
  for (int i = 0; i < 8; ++i) x[i] = load_part<Eight>(from + i * from_stride);
#pragma GCC unroll 3
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 4; ++i) {
      y[2 * i] = __builtin_shufflevector(x[i], x[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; ++i) x[i] = y[i];
  }
  for (int i = 0; i < 8; ++i) store_part(to + i * to_stride, x[i]);
}

template <class T, class S>
void transpose(const T* from, i64 rows, i64 columns, i64 from_stride, i64 to_stride, S* to) {
  constexpr bool kBlocks = std::is_same_v<T, float> && kVectorBytes >= 32;
  const bool blocks = kBlocks && rows % 8 == 0 && columns % 8 == 0;
  for (i64 r = 0; r < rows; r += blocks ? 8 : 1) {
    for (i64 c = 0; c < columns; c += blocks ? 8 : 1) {
      const T* x = from + r * from_stride + c;
      S* y = to + c * to_stride + r;
      if constexpr (std::is_same_v<T, S>) *y = *x;
      if constexpr (!std::is_same_v<T, S>) *y = widen(*x);
      if (!blocks) continue;
      if constexpr (kBlocks) transpose_block(x, from_stride, y, to_stride);
    }
  }
}

// From [heads][width] to [width][padded heads] and back.
template <class T, class S>
void interleave(const T* plain, i64 heads, i64 padded, i64 width, S* packed) {
  transpose(plain, heads, width, width, padded, packed);
}
template <class S> void separate(const S* packed, i64 heads, i64 padded, i64 width, S* plain) {
  transpose(packed, width, heads, padded, width, plain);
}

template <class T> void pack_rows(const PackOperands<T>& a, Span rows) {
  using S = Sum<T>;
  const i64 columns = packed_columns(a.padded, a.width);
  const bool filled = a.heads * a.width < columns;
  for (i64 row = rows.begin; row < rows.end; ++row) {
    T* place = reinterpret_cast<T*>(a.packed + row * a.stride);
    for (int i = 0; i < 2 && a.matrices[i]; ++i, place += columns) {
      if (filled) std::memset(static_cast<void*>(place), 0, columns * sizeof(T));
      interleave(a.matrices[i][row], a.heads, a.padded, a.width, place);
    }
    S* numbers = reinterpret_cast<S*>(place);
    for (int i = 0; i < 3 && a.numbers[i]; ++i) {
      for (i64 h = 0; h < a.padded; ++h) {
        *numbers++ = h < a.heads ? a.numbers[i][row * a.heads + h] : S{0};
      }
    }
  }
}

// The nonzeros of some rows, in a kernel's memory. kCount: heads of a part.
template <class T, int kCount> struct Neighbours {
  using S = Sum<T>;
  using V = LanesOf<S>;
  using P = Part<S, kCount>;
  static constexpr int L = kLanesOf<S>;
  static constexpr int kMaxPanel = kVectorRegisters / 4;

  const AttentionOperands<T>& a;
  const i64 columns = packed_columns(a.padded, a.width);
  const i64 packs = (a.padded * a.width + L - 1) / L;
  // Numbers of nonzeros are [nonzero][padded heads]; patterns of heads repeat after so many.
  const i64 period = a.padded > L ? a.padded : L;
  Room room;
  const char** at = room.template take<const char*>(2 * kAttentionTask + kAttentionAhead);
  S* factors = room.template take<S>(kAttentionChunk * a.padded + 16);

  Neighbours(const AttentionOperands<T>& operands, char* memory) : a(operands), room(memory) {}

  void point_at(Span nonzeros) {
    const i64 count = nonzeros.end - nonzeros.begin;
    if (a.indices.narrow) {
      const i32* indices = a.indices.narrow + nonzeros.begin;
      for (i64 e = 0; e < count; ++e) { at[e] = a.others.data + i64{indices[e]} * a.others.stride; }
    } else {
      const i64* indices = a.indices.wide + nonzeros.begin;
      for (i64 e = 0; e < count; ++e) at[e] = a.others.data + indices[e] * a.others.stride;
    }
    for (i64 e = count; e < count + kAttentionAhead; ++e) at[e] = a.others.data;
  }

  static const T* matrix(const char* row) { return reinterpret_cast<const T*>(row); }

  // f(pointer into the numbers of heads of a nonzero, offset among its heads), part by part.
  template <class Function> [[gnu::always_inline]] void for_each_part(Function f) const {
    if constexpr (kCount < L) {
      f(i64{0});
    } else {
      for (i64 h = 0; h < a.padded; h += L) f(h);
    }
  }

  // f(place, offset among heads) for every vector of the numbers of `count` nonzeros, and beyond.
  template <class Function>
  [[gnu::always_inline]] void for_each_vector(i64 count, Function f) const {
    for (i64 h = 0; h < period; h += L) {
      for (i64 i = h; i < count * a.padded; i += period) f(i, h);
    }
  }

  // GATv2: what an edge and the own end's row x add to the other's; `sum` has room for it.
  const S* with_edge(i64 nonzero, const S* x, S* sum) const {
    if (!a.edge_features) return x;
    const T* of_edge = a.edge_features + a.order[nonzero] * a.heads * a.width;
    interleave(of_edge, a.heads, a.padded, a.width, sum);
    for (i64 c = 0; c < columns; ++c) sum[c] += x[c];
    return sum;
  }

  // A pattern of heads, once for every lane.
  void repeat_heads(const S* plain, S* pattern, S padding = 0) const {
    for (i64 first = 0; first < period; first += a.padded) {
      for (i64 h = 0; h < a.padded; ++h) pattern[first + h] = h < a.heads ? plain[h] : padding;
    }
  }

  // One number for each head, from sums of lanes.
  void fold(S* sums) const {
    for (i64 i = a.padded; i < period; ++i) sums[i & (a.padded - 1)] += sums[i];
  }

  // Weights of heads for pack k of a row.
  [[gnu::always_inline]] V weights_of(const S* w, i64 k) const {
    if constexpr (kCount < L) {
      return repeated<S, kCount>(load_part<P>(w));
    } else {
      return load_vector<V>(w + (a.padded == L ? 0 : k * L % a.padded));
    }
  }

  // What dropout multiplies weights of nonzeros of row `own` with; other_row(e): on the other side.
  template <class Other>
  void make_factors(i64 own, i64 count, S* place, const Other& other_row) const {
    const EdgeDropout& rule = a.dropout;
    const S factor = static_cast<S>(rule.factor);
    const auto own_id = static_cast<u64>(rule.own_ids[own]);
    const auto heads = static_cast<u64>(a.heads);
    u64 stream = mix64(rule.seed + kGolden * (own_id + 1));
    for (i64 e = 0; e < count; ++e, place += a.padded) {
      const auto other = static_cast<u64>(rule.other_ids[other_row(e)]);
      if (rule.by_column) stream = mix64(rule.seed + kGolden * (other + 1));
      const u64 first = (rule.by_column ? own_id : other) * heads;
      for (u64 h = 0; h < heads; ++h) {
        const u64 bits = mix64(stream + kGolden * ((first + h) / 2 + 1));
        const u64 half = (first + h) % 2 ? bits >> 32 : bits & 0xffffffffu;
        place[h] = half < rule.threshold ? S{0} : factor;
      }
      for (i64 h = a.heads; h < a.padded; ++h) place[h] = 1;
    }
  }
  void make_factors(i64 own, Span nonzeros) {
    make_factors(own, nonzeros.end - nonzeros.begin, factors,
                 [&](i64 e) { return a.indices[nonzeros.begin + e]; });
  }

  // sums[0] += w · x, and sums[1] += u · x, over some nonzeros and `kPacks` packs from pack k on.
  template <int kPacks, bool kTwice>
  void add_panel(const char* const* rows, i64 count, i64 offset, i64 k, const S* w, const S* u,
                 S* sum, S* other_sum) const {
    V sums[kPacks], others[kPacks];
#pragma GCC unroll 16
    for (int i = 0; i < kPacks; ++i) {
      sums[i] = load_vector<V>(sum + (k + i) * L);
      if constexpr (kTwice) others[i] = load_vector<V>(other_sum + (k + i) * L);
    }
    for (i64 e = 0; e < count; ++e) {
      const T* x = matrix(rows[e]) + offset + k * L;
      V weight, other;
      if constexpr (kCount < L) {
        weight = weights_of(w + e * a.padded, k);
        if constexpr (kTwice) other = weights_of(u + e * a.padded, k);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kPacks; ++i) {
        const V features = load_wide(x + i * L);
        if constexpr (kCount == L) {
          weight = weights_of(w + e * a.padded, k + i);
          if constexpr (kTwice) other = weights_of(u + e * a.padded, k + i);
        }
        sums[i] += weight * features;
        if constexpr (kTwice) others[i] += other * features;
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kPacks; ++i) {
      store_vector(sum + (k + i) * L, sums[i]);
      if constexpr (kTwice) store_vector(other_sum + (k + i) * L, others[i]);
    }
  }

  // The same over all packs from pack k on; `offset` is the matrix's place in a packed row.
  template <bool kTwice, int kPacks = kMaxPanel>
  void add_rows(const char* const* rows, i64 count, i64 offset, const S* w, const S* u, S* sum,
                S* other, i64 k = 0) const {
    for (; k + kPacks <= packs; k += kPacks) {
      add_panel<kPacks, kTwice>(rows, count, offset, k, w, u, sum, other);
    }
    if constexpr (kPacks > 1) {
      add_rows<kTwice, kPacks / 2>(rows, count, offset, w, u, sum, other, k);
    }
  }

  // The inner product of two packed rows for every head; f(pack) makes the pack of products.
  template <class Function> [[gnu::always_inline]] void sum_packs(S* product, Function f) const {
    if constexpr (kCount < L) {
      V even{}, odd{};
      i64 k = 0;
      for (; k + 2 <= packs; k += 2) even += f(k), odd += f(k + 1);
      if (k < packs) even += f(k);
      store_part(product, folded<S, kCount>(even + odd));
    } else {
      for (i64 h = 0; h < a.padded; h += L) {
        V sum{};
        for (i64 k = h / L; k < packs; k += a.padded / L) sum += f(k);
        store_vector(product + h, sum);
      }
    }
  }
};

// Running triples of rows: merged, stored, finished.

template <class S> inline S* at_row(S* array, i64 row, i64 width) {
  return array ? array + row * width : nullptr;
}

template <class S> inline Triples<S> row_of(const Triples<S>& a, i64 row, i64 heads, i64 columns) {
  return {a.m + row * heads, a.n + row * heads, a.o + row * columns, at_row(a.p, row, columns),
          at_row(a.pi, row, heads)};
}

template <class S> inline S exp_difference(S x, S of) {
  return x == -static_cast<S>(__builtin_inf()) ? S{0} : exp_of_negative<S>(x - of);
}

// Merges a row's triple into another.
template <class S>
void merge_triple(const Triples<S>& into, const Triples<S>& other, i64 heads, i64 width) {
  for (i64 h = 0; h < heads; ++h) {
    const S m = into.m[h] > other.m[h] ? into.m[h] : other.m[h];
    const S mine = exp_difference(into.m[h], m), its = exp_difference(other.m[h], m);
    const bool both = into.p && other.p;
    into.m[h] = m;
    into.n[h] = into.n[h] * mine + other.n[h] * its;
    if (into.p) into.pi[h] = into.pi[h] * mine + (both ? other.pi[h] * its : S{0});
    for (i64 c = h * width; c < (h + 1) * width; ++c) {
      into.o[c] = into.o[c] * mine + other.o[c] * its;
    }
    if (!into.p) continue;
    for (i64 c = h * width; c < (h + 1) * width; ++c) {
      into.p[c] = into.p[c] * mine + (both ? other.p[c] * its : S{0});
    }
  }
}

template <class T>
void end_triple(const AttentionTarget<T>& target, i64 row, const Triples<Sum<T>>& triple, i64 heads,
                i64 width) {
  using S = Sum<T>;
  const i64 columns = heads * width;
  if (target.ending == Ending::kMerged) {
    merge_triple(row_of(target.triples, row, heads, columns), triple, heads, width);
    return;
  }
  if (target.ending == Ending::kStored) {
    const auto stored = row_of(target.triples, row, heads, columns);
    std::memcpy(stored.m, triple.m, heads * sizeof(S));
    std::memcpy(stored.n, triple.n, heads * sizeof(S));
    std::memcpy(stored.o, triple.o, columns * sizeof(S));
    if (!stored.p) return;
    std::memcpy(stored.p, triple.p, columns * sizeof(S));
    std::memcpy(stored.pi, triple.pi, heads * sizeof(S));
    return;
  }
  T* out = target.out + row * columns;
  S* p = at_row(target.triples.p, row, columns);
  for (i64 h = 0; h < heads; ++h) {
    const S n = triple.n[h], factor = n == 0 ? S{0} : 1 / n;
    target.lse[row * heads + h] = triple.m[h] + static_cast<S>(__builtin_log(n));
    for (i64 c = h * width; c < (h + 1) * width; ++c) out[c] = narrow<T>(triple.o[c] * factor);
    if (!p) continue;
    target.triples.pi[row * heads + h] = triple.pi[h] * factor;
    for (i64 c = h * width; c < (h + 1) * width; ++c) p[c] = triple.p[c] * factor;
  }
}

}  // namespace spgnn::SPGNN_ISA
