// The inner loops of attention, forward: scores, softmax and weighted sum over the nonzeros of a
// row. Rows of the other side come packed, see attention_lanes.hpp.
#pragma once

#include "attention_lanes.hpp"
#include "attention_types.hpp"
#include "kernel_table.hpp"
#include "prefetch.hpp"
#include "rows_kernel.hpp"
#include "segments_kernel.hpp"

namespace spgnn::SPGNN_ISA {

// Hands out pieces of a kernel's memory, each from a cache line on.
class Room {
 public:
  explicit Room(char* memory) : at_((reinterpret_cast<std::uintptr_t>(memory) + 63) / 64 * 64) {}

  template <class Element>
  Element* take(std::int64_t count) {
    auto* taken = reinterpret_cast<Element*>(at_);  // NOLINT(performance-no-int-to-ptr)
    at_ += (static_cast<std::uintptr_t>(count) * sizeof(Element) + 63) / 64 * 64;
    return taken;
  }
  template <class Element>
  Element* take_zeros(std::int64_t count) {
    Element* taken = take<Element>(count);
    for (std::int64_t i = 0; i < count; ++i) taken[i] = Element{};
    return taken;
  }

 private:
  std::uintptr_t at_;
};

inline std::int64_t number_at(const Numbers& numbers, std::int64_t i) {
  return numbers.narrow ? numbers.narrow[i] : numbers.wide ? numbers.wide[i] : i;
}

// From [heads][width] to [width][padded heads] and back.
template <class T, class S>
void interleave(const T* plain, std::int64_t heads, std::int64_t padded, std::int64_t width,
                S* packed) {
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t c = 0; c < width; ++c) {
      if constexpr (std::is_same_v<T, S>) {
        packed[c * padded + h] = plain[h * width + c];
      } else {
        packed[c * padded + h] = widen(plain[h * width + c]);
      }
    }
  }
}
template <class S>
void separate(const S* packed, std::int64_t heads, std::int64_t padded, std::int64_t width,
              S* plain) {
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t c = 0; c < width; ++c) plain[h * width + c] = packed[c * padded + h];
  }
}

template <class T>
void pack_rows(const PackOperands<T>& a, Span rows) {
  using S = Sum<T>;
  const std::int64_t columns = packed_columns(a.padded, a.width);
  const bool filled = a.heads * a.width < columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    T* place = reinterpret_cast<T*>(a.packed + row * a.stride);
    for (int i = 0; i < 2 && a.matrices[i]; ++i, place += columns) {
      if (filled) std::memset(static_cast<void*>(place), 0, columns * sizeof(T));
      interleave(a.matrices[i] + row * a.strides[i], a.heads, a.padded, a.width, place);
    }
    S* numbers = reinterpret_cast<S*>(place);
    for (int i = 0; i < 3 && a.numbers[i]; ++i) {
      for (std::int64_t h = 0; h < a.padded; ++h) {
        *numbers++ = h < a.heads ? a.numbers[i][row * a.heads + h] : S{0};
      }
    }
  }
}

// What forward and backward share: the nonzeros of some rows, in a kernel's memory. kCount: heads
// of a part.
template <class T, int kCount>
struct Neighbours {
  using S = Sum<T>;
  using V = LanesOf<S>;
  using P = Part<S, kCount>;
  static constexpr int L = kLanesOf<S>;
  static constexpr int kMaxPanel = kVectorRegisters / 4;

  const AttentionOperands<T>& a;
  const std::int64_t columns = packed_columns(a.padded, a.width);
  const std::int64_t packs = (a.padded * a.width + L - 1) / L;
  // Numbers of nonzeros are [nonzero][padded heads]; patterns of heads repeat after so many.
  const std::int64_t period = a.padded > L ? a.padded : L;
  Room room;
  const char** at = room.template take<const char*>(2 * kAttentionTask + kAttentionAhead);
  S* factors = room.template take<S>(kAttentionChunk * a.padded + 16);

  Neighbours(const AttentionOperands<T>& operands, char* memory) : a(operands), room(memory) {}

  void point_at(Span nonzeros) {
    const std::int64_t count = nonzeros.end - nonzeros.begin;
    if (a.indices.narrow) {
      const std::int32_t* indices = a.indices.narrow + nonzeros.begin;
      for (std::int64_t e = 0; e < count; ++e) {
        at[e] = a.others.data + std::int64_t{indices[e]} * a.others.stride;
      }
    } else {
      const std::int64_t* indices = a.indices.wide + nonzeros.begin;
      for (std::int64_t e = 0; e < count; ++e) at[e] = a.others.data + indices[e] * a.others.stride;
    }
    for (std::int64_t e = count; e < count + kAttentionAhead; ++e) at[e] = a.others.data;
  }

  static const T* matrix(const char* row) { return reinterpret_cast<const T*>(row); }

  // f(pointer into the numbers of heads of a nonzero, offset among its heads), part by part.
  template <class Function>
  [[gnu::always_inline]] void for_each_part(Function f) const {
    if constexpr (kCount < L) {
      f(std::int64_t{0});
    } else {
      for (std::int64_t h = 0; h < a.padded; h += L) f(h);
    }
  }

  // f(place, offset in the pattern of heads) for every vector of the numbers of `count` nonzeros.
  // With fewer heads than lanes the last one reaches beyond them.
  template <class Function>
  [[gnu::always_inline]] void for_each_vector(std::int64_t count, Function f) const {
    for (std::int64_t h = 0; h < period; h += L) {
      for (std::int64_t i = h; i < count * a.padded; i += period) f(i, h);
    }
  }

  // A pattern of heads, once for every lane.
  void repeat_heads(const S* plain, S* pattern, S padding = 0) const {
    for (std::int64_t i = 0; i < period; ++i) {
      const std::int64_t head = i % a.padded;
      pattern[i] = head < a.heads ? plain[head] : padding;
    }
  }

  // Weights of heads for pack k of a row.
  [[gnu::always_inline]] V weights_of(const S* w, std::int64_t k) const {
    if constexpr (kCount < L) {
      return repeated<S, kCount>(load_part<P>(w));
    } else {
      return load_vector<V>(w + (a.padded == L ? 0 : k * L % a.padded));
    }
  }

  // What dropout multiplies weights with. `own` is the row, `first` its first nonzero here.
  void make_factors(std::int64_t own, Span nonzeros) {
    const EdgeDropout& rule = a.dropout;
    const S factor = static_cast<S>(rule.factor);
    const auto own_id = static_cast<std::uint64_t>(rule.own_ids[own]);
    const auto heads = static_cast<std::uint64_t>(a.heads);
    std::uint64_t stream = mix64(rule.seed + kGolden * (own_id + 1));
    for (std::int64_t e = nonzeros.begin; e < nonzeros.end; ++e) {
      const auto other = static_cast<std::uint64_t>(rule.other_ids[number_at(a.indices, e)]);
      if (rule.by_column) stream = mix64(rule.seed + kGolden * (other + 1));
      const std::uint64_t first = (rule.by_column ? own_id : other) * heads;
      S* place = factors + (e - nonzeros.begin) * a.padded;
      for (std::uint64_t h = 0; h < heads; ++h) {
        const std::uint64_t bits = mix64(stream + kGolden * ((first + h) / 2 + 1));
        const std::uint64_t half = (first + h) % 2 ? bits >> 32 : bits & 0xffffffffu;
        place[h] = half < rule.threshold ? S{0} : factor;
      }
      for (std::int64_t h = a.heads; h < a.padded; ++h) place[h] = 1;
    }
  }

  // sums[0] += w · x, and sums[1] += u · x, over some nonzeros and `kPacks` packs from pack k on.
  template <int kPacks, bool kTwice>
  void add_panel(const char* const* rows, std::int64_t count, std::int64_t offset, std::int64_t k,
                 const S* w, const S* u, S* sum, S* other_sum) const {
    V sums[kPacks], others[kPacks];
#pragma GCC unroll 16
    for (int i = 0; i < kPacks; ++i) {
      sums[i] = load_vector<V>(sum + (k + i) * L);
      if constexpr (kTwice) others[i] = load_vector<V>(other_sum + (k + i) * L);
    }
    for (std::int64_t e = 0; e < count; ++e) {
      const T* x = matrix(rows[e]) + offset + k * L;
      V weight, other;
      if constexpr (kCount < L) {
        weight = weights_of(w + e * a.padded, k);
        if constexpr (kTwice) other = weights_of(u + e * a.padded, k);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kPacks; ++i) {
        const V features = load_wide<S>(x + i * L);
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

  // The same over all packs; `offset` is the matrix's place in a packed row.
  template <bool kTwice>
  void add_rows(const char* const* rows, std::int64_t count, std::int64_t offset, const S* w,
                const S* u, S* sum, S* other) const {
    for (std::int64_t k = 0; k < packs;) {
      const std::int64_t left = packs - k;
      if (kMaxPanel >= 8 && left >= 8) {
        add_panel<kMaxPanel, kTwice>(rows, count, offset, k, w, u, sum, other), k += 8;
      } else if (left >= 4) {
        add_panel<4, kTwice>(rows, count, offset, k, w, u, sum, other), k += 4;
      } else if (left >= 2) {
        add_panel<2, kTwice>(rows, count, offset, k, w, u, sum, other), k += 2;
      } else {
        add_panel<1, kTwice>(rows, count, offset, k, w, u, sum, other), k += 1;
      }
    }
  }

  // The inner product of two packed rows for every head, written to `product`. f(pack) makes the
  // pack of products.
  template <class Function>
  [[gnu::always_inline]] void sum_packs(S* product, Function f) const {
    if constexpr (kCount < L) {
      V even{}, odd{};
      std::int64_t k = 0;
      for (; k + 2 <= packs; k += 2) even += f(k), odd += f(k + 1);
      if (k < packs) even += f(k);
      store_part(product, folded<S, kCount>(even + odd));
    } else {
      for (std::int64_t h = 0; h < a.padded; h += L) {
        V sum{};
        for (std::int64_t k = h / L; k < packs; k += a.padded / L) sum += f(k);
        store_vector(product + h, sum);
      }
    }
  }
};

template <class S>
inline S* at_row(S* array, std::int64_t row, std::int64_t width) {
  return array ? array + row * width : nullptr;
}

template <class S>
inline Triples<S> row_of(const Triples<S>& a, std::int64_t row, std::int64_t heads,
                         std::int64_t columns) {
  return {a.m + row * heads, a.n + row * heads, a.o + row * columns, at_row(a.p, row, columns),
          at_row(a.pi, row, heads)};
}

template <class S>
inline S exp_difference(S x, S of) {
  return x == -static_cast<S>(__builtin_inf()) ? S{0} : exp_of_negative(x - of);
}

// Merges a row's triple into another.
template <class S>
void merge_triple(const Triples<S>& into, const Triples<S>& other, std::int64_t heads,
                  std::int64_t width) {
  for (std::int64_t h = 0; h < heads; ++h) {
    const S m = into.m[h] > other.m[h] ? into.m[h] : other.m[h];
    const S mine = exp_difference(into.m[h], m), its = exp_difference(other.m[h], m);
    const bool both = into.p && other.p;
    into.m[h] = m;
    into.n[h] = into.n[h] * mine + other.n[h] * its;
    if (into.p) into.pi[h] = into.pi[h] * mine + (both ? other.pi[h] * its : S{0});
    for (std::int64_t c = h * width; c < (h + 1) * width; ++c) {
      into.o[c] = into.o[c] * mine + other.o[c] * its;
    }
    if (!into.p) continue;
    for (std::int64_t c = h * width; c < (h + 1) * width; ++c) {
      into.p[c] = into.p[c] * mine + (both ? other.p[c] * its : S{0});
    }
  }
}

template <class T>
void end_triple(const AttentionTarget<T>& target, std::int64_t row, const Triples<Sum<T>>& triple,
                std::int64_t heads, std::int64_t width) {
  using S = Sum<T>;
  const std::int64_t columns = heads * width;
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
  for (std::int64_t h = 0; h < heads; ++h) {
    const S n = triple.n[h], factor = n == 0 ? S{0} : 1 / n;
    target.lse[row * heads + h] = triple.m[h] + static_cast<S>(__builtin_log(n));
    for (std::int64_t c = h * width; c < (h + 1) * width; ++c)
      out[c] = narrow<T>(triple.o[c] * factor);
    if (!p) continue;
    target.triples.pi[row * heads + h] = triple.pi[h] * factor;
    for (std::int64_t c = h * width; c < (h + 1) * width; ++c) p[c] = triple.p[c] * factor;
  }
}

template <class T, int kCount, bool kV2>
struct Attention : Neighbours<T, kCount> {
  using Base = Neighbours<T, kCount>;
  using S = typename Base::S;
  using V = typename Base::V;
  using P = typename Base::P;
  static constexpr int L = Base::L;
  using Base::a, Base::room, Base::at, Base::columns, Base::packs, Base::period, Base::factors;

  S* scores = room.template take<S>(kAttentionTask * a.padded + 16);
  S* w = room.template take<S>(kAttentionChunk * a.padded + 16);
  S* u = room.template take<S>(kAttentionChunk * a.padded + 16);
  S* largest = room.template take<S>(period);
  S* d = room.template take<S>(period);
  S* m = room.template take<S>(period);
  S* n = room.template take<S>(period);
  S* pi = room.template take<S>(period);
  S* o = room.template take<S>(columns);
  S* p = room.template take<S>(columns);
  S* x = room.template take_zeros<S>(columns);
  S* t = room.template take_zeros<S>(columns);
  S* vector = room.template take_zeros<S>(columns);
  S* plain_o = room.template take<S>(columns);
  S* plain_p = room.template take<S>(columns);

  Attention(const AttentionOperands<T>& operands, char* memory) : Base(operands, memory) {
    if constexpr (kV2) interleave(a.a, a.heads, a.padded, a.width, vector);
  }

  // The numbers that scores are made of, and the largest of each head. GAT: s_j [+ t_ij]; GATv2:
  // the scores themselves.
  void gather_scores(const char* const* rows, Span nonzeros) {
    constexpr S kLeast = -static_cast<S>(__builtin_inf());
    const std::int64_t count = nonzeros.end - nonzeros.begin;
    const int lines = lines_of(columns * static_cast<std::int64_t>(sizeof(T)) +
                               (kV2 ? 0 : a.padded * static_cast<std::int64_t>(sizeof(S))));
    for (std::int64_t i = 0; i < a.padded; ++i) largest[i] = kLeast;
    for (std::int64_t e = 0; e < count; ++e) {
      prefetch_lines(rows[e + kAttentionAhead], lines);
      const T* row = this->matrix(rows[e]);
      S* score = scores + e * a.padded;
      if constexpr (kV2) {
        if (a.edge_features) {
          const std::int64_t edge = number_at(a.order, nonzeros.begin + e);
          interleave(a.edge_features + edge * a.heads * a.width, a.heads, a.padded, a.width, t);
        }
        this->sum_packs(score, [&](std::int64_t k) {
          const V sum =
              load_vector<V>(x + k * L) + load_wide<S>(row + k * L) + load_vector<V>(t + k * L);
          return (sum > 0 ? sum : sum * a.slope) * load_vector<V>(vector + k * L);
        });
      } else {
        const S* s = reinterpret_cast<const S*>(row + columns);
        this->for_each_part([&](std::int64_t h) { store_part(score + h, load_part<P>(s + h)); });
        if (a.edge_scores) {
          const std::int64_t edge = number_at(a.order, nonzeros.begin + e);
          for (std::int64_t h = 0; h < a.heads; ++h) score[h] += a.edge_scores[edge * a.heads + h];
        }
      }
      this->for_each_part([&](std::int64_t h) {
        const P mine = load_part<P>(score + h), before = load_part<P>(largest + h);
        store_part(largest + h, mine > before ? mine : before);
      });
    }
  }

  // Weights of a chunk; adds them up in n and pi.
  template <bool kTwice>
  void make_weights(const S* score, std::int64_t count) {
    this->for_each_vector(count, [&](std::int64_t i, std::int64_t h) {
      V argument = load_vector<V>(score + i), weight;
      if constexpr (kV2) {
        weight = exp_of_negatives<S>(argument - load_vector<V>(m + h));
      } else {
        argument += load_vector<V>(d + h);
        const V e = argument > 0 ? argument : argument * a.slope;
        weight = exp_of_negatives<S>(e - load_vector<V>(m + h));
      }
      weight = first_lanes<S>(weight, count * a.padded - i);  // not what lies beyond the last
      store_vector(w + i, weight);
      store_vector(n + h, load_vector<V>(n + h) + weight);
      if constexpr (kTwice) {
        const V positive = argument > 0 ? weight : V{};
        store_vector(u + i, positive);
        store_vector(pi + h, load_vector<V>(pi + h) + positive);
      }
    });
    if (!a.dropout.own_ids) return;
    this->for_each_vector(count, [&](std::int64_t i, std::int64_t) {
      const V factor = load_vector<V>(factors + i);
      store_vector(w + i, load_vector<V>(w + i) * factor);
      if constexpr (kTwice) store_vector(u + i, load_vector<V>(u + i) * factor);
    });
  }

  // One number for each head, from sums of lanes.
  void fold(S* sums) const {
    for (std::int64_t i = a.padded; i < period; ++i) sums[i % a.padded] += sums[i];
  }

  template <bool kTwice>
  Triples<S> of_row(std::int64_t row, const char* const* rows, Span nonzeros) {
    constexpr S kLeast = -static_cast<S>(__builtin_inf());
    if constexpr (kV2) {
      interleave(a.own[0] + row * a.own_stride[0], a.heads, a.padded, a.width, x);
    } else {
      this->repeat_heads(a.own_numbers[0] + row * a.heads, d);
    }
    gather_scores(rows, nonzeros);
    for (std::int64_t h = 0; h < a.padded; ++h) {
      S score = largest[h];
      if constexpr (!kV2) {
        score += d[h];
        score = score > 0 ? score : score * a.slope;
      }
      largest[h] = score;
      // Nothing but −∞: no weight, rather than the exponential of −∞ + ∞.
      for (std::int64_t i = h; i < period; i += a.padded) m[i] = score == kLeast ? S{0} : score;
    }
    for (std::int64_t i = 0; i < period; ++i) n[i] = pi[i] = 0;
    for (std::int64_t c = 0; c < columns; ++c) o[c] = 0;
    if constexpr (kTwice) {
      for (std::int64_t c = 0; c < columns; ++c) p[c] = 0;
    }
    const std::int64_t total = nonzeros.end - nonzeros.begin;
    for (std::int64_t first = 0; first < total; first += kAttentionChunk) {
      const std::int64_t left = total - first;
      const std::int64_t count = left < kAttentionChunk ? left : kAttentionChunk;
      const std::int64_t begin = nonzeros.begin + first;
      if (a.dropout.own_ids) this->make_factors(row, {begin, begin + count});
      make_weights<kTwice>(scores + first * a.padded, count);
      this->template add_rows<kTwice>(rows + first, count, 0, w, u, o, p);
    }
    fold(n);
    fold(pi);
    separate(o, a.heads, a.padded, a.width, plain_o);
    if constexpr (kTwice) separate(p, a.heads, a.padded, a.width, plain_p);
    return {largest, n, plain_o, kTwice ? plain_p : nullptr, kTwice ? pi : nullptr};
  }

  void run(const AttentionTarget<T>& target, Span rows, const std::int64_t* indptr) {
    const std::int64_t first = indptr[0];
    this->point_at({first, indptr[rows.end - rows.begin]});
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      const Span nonzeros{indptr[row - rows.begin], indptr[row - rows.begin + 1]};
      if (nonzeros.begin == nonzeros.end && target.ending == Ending::kMerged) continue;
      const char* const* others = at + (nonzeros.begin - first);
      if (!kV2 && target.triples.p) {
        end_triple(target, row, of_row<!kV2>(row, others, nonzeros), a.heads, a.width);
      } else {
        end_triple(target, row, of_row<false>(row, others, nonzeros), a.heads, a.width);
      }
    }
  }
};

// Calls function<T, heads of a part>(…).
#define SPGNN_BY_HEADS(T, padded, call)                                                \
  switch ((padded) < kLanesOf<Sum<T>> ? static_cast<int>(padded) : kLanesOf<Sum<T>>) { \
    case 1:                                                                            \
      call(1);                                                                         \
      break;                                                                           \
    case 2:                                                                            \
      call(2);                                                                         \
      break;                                                                           \
    case 4:                                                                            \
      if constexpr (kLanesOf<Sum<T>> >= 4) call(4);                                    \
      break;                                                                           \
    case 8:                                                                            \
      if constexpr (kLanesOf<Sum<T>> >= 8) call(8);                                    \
      break;                                                                           \
    default:                                                                           \
      if constexpr (kLanesOf<Sum<T>> >= 16) call(16);                                  \
  }

template <class T, bool kV2, int kCount>
void attend_by_heads(const AttentionOperands<T>& a, const AttentionTarget<T>& target, Span rows,
                     const std::int64_t* indptr, char* room) {
  Attention<T, kCount, kV2>(a, room).run(target, rows, indptr);
}

template <class T, bool kV2>
void attend(const AttentionOperands<T>& a, const AttentionTarget<T>& target, Span rows,
            const std::int64_t* indptr, char* room) {
#define SPGNN_CALL(count) attend_by_heads<T, kV2, count>(a, target, rows, indptr, room)
  SPGNN_BY_HEADS(T, a.padded, SPGNN_CALL)
#undef SPGNN_CALL
}

}  // namespace spgnn::SPGNN_ISA
