// The inner loops of attention, forward: scores, softmax and weighted sum over the nonzeros of a
// row.
#pragma once

#include "attention_rows.hpp"

namespace spgnn::SPGNN_ISA {

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
        // Of −∞, no multiple: a slope of 0 would make it NaN.
        score = score > 0 || score == kLeast ? score : score * a.slope;
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
