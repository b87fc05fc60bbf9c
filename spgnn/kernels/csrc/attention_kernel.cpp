// The inner loops of attention, forward and backward, and the table of one instruction set.
#include "attention_rows.hpp"

namespace spgnn::SPGNN_ISA {

// Forward: scores, softmax and weighted sum over the nonzeros of a row.
template <class T, int kCount, bool kV2> struct Attention : Neighbours<T, kCount> {
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

  // What scores are made of, and the largest of each head. GAT: s_j [+ t_ij]; GATv2: the scores.
  void gather_scores(const char* const* rows, Span nonzeros) {
    constexpr S kLeast = -static_cast<S>(__builtin_inf());
    const i64 count = nonzeros.end - nonzeros.begin;
    const int lines = lines_of(columns * static_cast<i64>(sizeof(T)) +
                               (kV2 ? 0 : a.padded * static_cast<i64>(sizeof(S))));
    for (i64 i = 0; i < a.padded; ++i) largest[i] = kLeast;
    for (i64 e = 0; e < count; ++e) {
      prefetch_lines(rows[e + kAttentionAhead], lines);
      const T* row = this->matrix(rows[e]);
      S* score = scores + e * a.padded;
      if constexpr (kV2) {
        const S* mine = this->with_edge(nonzeros.begin + e, x, t);
        this->sum_packs(score, [&](i64 k) {
          const V sum = load_vector<V>(mine + k * L) + load_wide(row + k * L);
          return (sum > 0 ? sum : sum * a.slope) * load_vector<V>(vector + k * L);
        });
      } else {
        const S* s = reinterpret_cast<const S*>(row + columns);
        this->for_each_part([&](i64 h) { store_part(score + h, load_part<P>(s + h)); });
        if (a.edge_scores) {
          const i64 edge = a.order[nonzeros.begin + e];
          for (i64 h = 0; h < a.heads; ++h) score[h] += a.edge_scores[edge * a.heads + h];
        }
      }
      this->for_each_part([&](i64 h) {
        const P mine = load_part<P>(score + h), before = load_part<P>(largest + h);
        store_part(largest + h, mine > before ? mine : before);
      });
    }
  }

  // Weights of a chunk; adds them up in n and pi.
  template <bool kTwice> void make_weights(const S* score, i64 count) {
    const bool drops = a.dropout.own_ids != nullptr;
    this->for_each_vector(count, [&](i64 i, i64 h) {
      V argument = load_vector<V>(score + i), weight;
      if constexpr (kV2) {
        weight = exp_of_negative<S>(argument - load_vector<V>(m + h));
      } else {
        argument += load_vector<V>(d + h);
        const V e = argument > 0 ? argument : argument * a.slope;
        weight = exp_of_negative<S>(e - load_vector<V>(m + h));
      }
      weight = first_lanes<S>(weight, count * a.padded - i);  // not what lies beyond the last
      store_vector(n + h, load_vector<V>(n + h) + weight);
      const V factor = drops ? load_vector<V>(factors + i) : V{} + S(1);
      store_vector(w + i, weight * factor);
      if constexpr (!kTwice) return;
      const V positive = argument > 0 ? weight : V{};
      store_vector(pi + h, load_vector<V>(pi + h) + positive);
      store_vector(u + i, positive * factor);
    });
  }

  template <bool kTwice> Triples<S> of_row(i64 row, const char* const* rows, Span nonzeros) {
    constexpr S kLeast = -static_cast<S>(__builtin_inf());
    if constexpr (kV2) {
      interleave(a.own[0][row], a.heads, a.padded, a.width, x);
    } else {
      this->repeat_heads(a.own_numbers[0] + row * a.heads, d);
    }
    gather_scores(rows, nonzeros);
    for (i64 h = 0; h < a.padded; ++h) {
      S score = largest[h];
      if constexpr (!kV2) {
        score += d[h];
        // Of −∞, no multiple: a slope of 0 would make it NaN.
        score = score > 0 || score == kLeast ? score : score * a.slope;
      }
      largest[h] = score;
      // Nothing but −∞: no weight, rather than the exponential of −∞ + ∞.
      for (i64 i = h; i < period; i += a.padded) m[i] = score == kLeast ? S{0} : score;
    }
    for (i64 i = 0; i < period; ++i) n[i] = pi[i] = 0;
    for (i64 c = 0; c < columns; ++c) o[c] = 0;
    if constexpr (kTwice) {
      for (i64 c = 0; c < columns; ++c) p[c] = 0;
    }
    const i64 total = nonzeros.end - nonzeros.begin;
    for (i64 first = 0; first < total; first += kAttentionChunk) {
      const i64 left = total - first;
      const i64 count = left < kAttentionChunk ? left : kAttentionChunk;
      const i64 begin = nonzeros.begin + first;
      if (a.dropout.own_ids) this->make_factors(row, {begin, begin + count});
      make_weights<kTwice>(scores + first * a.padded, count);
      this->template add_rows<kTwice>(rows + first, count, 0, w, u, o, p);
    }
    this->fold(n), this->fold(pi);
    separate(o, a.heads, a.padded, a.width, plain_o);
    if constexpr (kTwice) separate(p, a.heads, a.padded, a.width, plain_p);
    return {largest, n, plain_o, kTwice ? plain_p : nullptr, kTwice ? pi : nullptr};
  }

  void run(const AttentionTarget<T>& target, Span rows, const i64* indptr) {
    const i64 first = indptr[0];
    this->point_at({first, indptr[rows.end - rows.begin]});
    for (i64 row = rows.begin; row < rows.end; ++row) {
      const Span nonzeros{indptr[row - rows.begin], indptr[row - rows.begin + 1]};
      if (nonzeros.begin == nonzeros.end && target.ending == Ending::kMerged) continue;
      const char* const* others = at + (nonzeros.begin - first);
      const auto triple = !kV2 && target.triples.p ? of_row<!kV2>(row, others, nonzeros)
                                                   : of_row<false>(row, others, nonzeros);
      end_triple(target, row, triple, a.heads, a.width);
    }
  }
};

template <class T, bool kV2>
void attend(const AttentionOperands<T>& a, const AttentionTarget<T>& target, Span rows,
            const i64* indptr, char* room) {
  by_heads<Sum<T>>(a.padded, [&]<int kCount>() {
    Attention<T, kCount, kV2>(a, room).run(target, rows, indptr);
  });
}

// The inner loops of attention, backward: scores are made again, and the gradients of a row summed
// over its nonzeros. Rows are those of the transpose but for GATv2's gradients in x and a.

enum class Side { kColumns, kColumnsV2, kRowsV2 };

// Own rows, and what is packed of the others:
//   kColumns    z; s                 G | d, lse, D
//   kColumnsV2  y                    x, G | lse, D
//   kRowsV2     x, G; lse, D         y
template <class T, int kCount, Side kSide> struct AttentionBackward : Neighbours<T, kCount> {
  using Base = Neighbours<T, kCount>;
  using S = typename Base::S;
  using V = typename Base::V;
  using P = typename Base::P;
  static constexpr int L = Base::L;
  static constexpr bool kV2 = kSide != Side::kColumns;
  static constexpr bool kOfRows = kSide == Side::kRowsV2;
  using Base::a, Base::room, Base::at, Base::columns, Base::packs, Base::period, Base::factors;

  S* scores = room.template take<S>(kAttentionChunk * a.padded + 16);
  S* products = room.template take<S>(kAttentionChunk * a.padded + 16);
  S* lse = room.template take<S>(kAttentionChunk * a.padded + 16);
  S* inner = room.template take<S>(kAttentionChunk * a.padded + 16);  // D
  S* numbers[2] = {room.template take<S>(period), room.template take<S>(period)};
  S* number_sums = room.template take<S>(period);
  S* own[2] = {room.template take_zeros<S>(columns), room.template take_zeros<S>(columns)};
  S* t = room.template take_zeros<S>(columns);
  S* vector = room.template take_zeros<S>(columns);
  S* sum = room.template take<S>(columns);
  S* edge = room.template take<S>(columns);
  S* plain = room.template take<S>(columns);

  AttentionBackward(const AttentionOperands<T>& operands, char* memory) : Base(operands, memory) {
    if constexpr (kV2) interleave(a.a, a.heads, a.padded, a.width, vector);
  }

  // A pack of the two ends' features that is summed.
  [[gnu::always_inline]] V product(const T* row, i64 k) const {
    constexpr int kGradient = kOfRows ? 1 : 0;
    const T* other = kSide == Side::kColumnsV2 ? row + columns : row;
    return load_vector<V>(own[kGradient] + k * L) * load_wide(other + k * L);
  }

  void gather(const char* const* rows, Span nonzeros) {
    const i64 count = nonzeros.end - nonzeros.begin;
    constexpr int kMatrices = kSide == Side::kColumnsV2 ? 2 : 1;
    constexpr int kNumbers = kOfRows ? 0 : kV2 ? 2 : 3;
    const int lines = lines_of(kMatrices * columns * static_cast<i64>(sizeof(T)) +
                               kNumbers * a.padded * static_cast<i64>(sizeof(S)));
    for (i64 e = 0; e < count; ++e) {
      prefetch_lines(rows[e + kAttentionAhead], lines);
      const T* row = this->matrix(rows[e]);
      const S* others = reinterpret_cast<const S*>(row + kMatrices * columns);
      const i64 place = e * a.padded;
      if constexpr (kV2) {
        const S* mine = this->with_edge(nonzeros.begin + e, own[0], t);
        this->sum_packs(scores + place, [&](i64 k) {
          const V both = load_vector<V>(mine + k * L) + load_wide(row + k * L);
          return (both > 0 ? both : both * a.slope) * load_vector<V>(vector + k * L);
        });
      } else {
        this->for_each_part(
            [&](i64 h) { store_part(scores + place + h, load_part<P>(others + h)); });
        if (a.edge_scores) {
          const S* score = a.edge_scores + a.order[nonzeros.begin + e] * a.heads;
          for (i64 h = 0; h < a.heads; ++h) scores[place + h] += score[h];
        }
        others += a.padded;
      }
      if constexpr (!kOfRows) {
        this->for_each_part([&](i64 h) {
          store_part(lse + place + h, load_part<P>(others + h));
          store_part(inner + place + h, load_part<P>(others + a.padded + h));
        });
      }
      this->sum_packs(products + place, [&](i64 k) { return product(row, k); });
    }
  }

  // Weights of a chunk go to `scores`, gradients of scores (GAT: of arguments) to `products`.
  void make_gradients(i64 count) {
    const bool drops = a.dropout.own_ids != nullptr;
    this->for_each_vector(count, [&](i64 i, i64 h) {
      V score = load_vector<V>(scores + i), slope = V{} + S(1);
      if constexpr (!kV2) {
        score += load_vector<V>(numbers[0] + h);
        slope = score > 0 ? slope : a.slope + V{};
        score = score > 0 ? score : score * a.slope;
      }
      const V normaliser = load_vector<V>(kOfRows ? numbers[0] + h : lse + i);
      // Scores of −∞ have no weight, nor have rows of nothing else.
      constexpr S kLeast = -static_cast<S>(__builtin_inf());
      const V difference = score == kLeast ? score : score - normaliser;
      V weight = exp_of_negative<S>(difference);
      V g = load_vector<V>(products + i);
      const V factor = drops ? load_vector<V>(factors + i) : V{} + S(1);
      g = weight * (g * factor - load_vector<V>(kOfRows ? numbers[1] + h : inner + i)) * slope;
      g = first_lanes<S>(g, count * a.padded - i);
      store_vector(scores + i, weight * factor);
      store_vector(products + i, g);
      if constexpr (!kV2) store_vector(number_sums + h, load_vector<V>(number_sums + h) + g);
    });
  }

  // GATv2: what the gradients g of the scores of some nonzeros give x (or y), and a.
  template <int kPacks = kVectorRegisters / 8>
  void add_scores(const char* const* rows, i64 count, const S* mine, const S* g, S* into, S* of_a,
                  i64 k = 0) const {
    for (; k + kPacks <= packs; k += kPacks) {
      V ends[kPacks], vectors[kPacks], sums[kPacks] = {}, others[kPacks] = {};
#pragma GCC unroll 16
      for (int i = 0; i < kPacks; ++i) {
        ends[i] = load_vector<V>(mine + (k + i) * L);
        vectors[i] = load_vector<V>(vector + (k + i) * L);
      }
      for (i64 e = 0; e < count; ++e) {
        const T* row = this->matrix(rows[e]) + k * L;
#pragma GCC unroll 16
        for (int i = 0; i < kPacks; ++i) {
          const V both = ends[i] + load_wide(row + i * L);
          const V of_score = this->weights_of(g + e * a.padded, k + i);
          const V change = of_score * (both > 0 ? V{} + S(1) : V{} + a.slope);
          sums[i] += change * vectors[i];
          if constexpr (kOfRows) others[i] += change * both;
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < kPacks; ++i) {
        const i64 place = (k + i) * L;
        store_vector(into + place, load_vector<V>(into + place) + sums[i]);
        if constexpr (kOfRows) store_vector(of_a + place, load_vector<V>(of_a + place) + others[i]);
      }
    }
    if constexpr (kPacks > 1) add_scores<kPacks / 2>(rows, count, mine, g, into, of_a, k);
  }
  void add_scores(const char* const* rows, Span nonzeros, const AttentionGradients<T>& gradients) {
    if (!a.edge_features) {
      const i64 count = nonzeros.end - nonzeros.begin;
      return add_scores<>(rows, count, own[0], products, sum, gradients.a);
    }
    for (i64 e = nonzeros.begin; e < nonzeros.end; ++e, ++rows) {
      const S *mine = this->with_edge(e, own[0], t),
              *g = products + (e - nonzeros.begin) * a.padded;
      std::memset(edge, 0, columns * sizeof(S));
      add_scores<>(rows, 1, mine, g, edge, gradients.a);
      for (i64 c = 0; c < columns; ++c) sum[c] += edge[c];
      if (!gradients.edge_features) continue;
      separate(edge, a.heads, a.padded, a.width, plain);
      T* place = gradients.edge_features + a.order[e] * a.heads * a.width;
      for (i64 c = 0; c < a.heads * a.width; ++c) place[c] = narrow<T>(plain[c]);
    }
  }

  void write_edge_scores(Span nonzeros, S* edges) const {
    for (i64 e = nonzeros.begin; e < nonzeros.end; ++e) {
      const S* g = products + (e - nonzeros.begin) * a.padded;
      std::memcpy(edges + a.order[e] * a.heads, g, a.heads * sizeof(S));
    }
  }

  void sum_row(const AttentionGradients<T>& gradients, i64 row, const char* const* rows,
               Span nonzeros) {
    interleave(a.own[0][row], a.heads, a.padded, a.width, own[0]);
    if constexpr (kOfRows) {
      interleave(a.own[1][row], a.heads, a.padded, a.width, own[1]);
      this->repeat_heads(a.own_numbers[1] + row * a.heads, numbers[1]);
    }
    if constexpr (kSide != Side::kColumnsV2) {
      this->repeat_heads(a.own_numbers[0] + row * a.heads, numbers[0]);
    }
    for (i64 c = 0; c < columns; ++c) sum[c] = 0;
    for (i64 i = 0; i < period; ++i) number_sums[i] = 0;
    for (Span chunk = nonzeros; chunk.begin < nonzeros.end; chunk.begin = chunk.end) {
      const bool last = nonzeros.end - chunk.begin <= kAttentionChunk;
      chunk.end = last ? nonzeros.end : chunk.begin + kAttentionChunk;
      const i64 count = chunk.end - chunk.begin;
      const char* const* others = rows + (chunk.begin - nonzeros.begin);
      if (a.dropout.own_ids) this->make_factors(row, chunk);
      gather(others, chunk);
      make_gradients(count);
      if (gradients.edge_scores) write_edge_scores(chunk, gradients.edge_scores);
      if constexpr (!kOfRows) {
        const i64 offset = kSide == Side::kColumnsV2 ? columns : 0;
        this->template add_rows<false>(others, count, offset, scores, nullptr, sum, nullptr);
      }
      if constexpr (kV2) add_scores(others, chunk, gradients);
    }
    this->fold(number_sums);
    separate(sum, a.heads, a.padded, a.width, plain);
  }

  void run(const AttentionGradients<T>& gradients, Span rows, const i64* indptr) {
    const i64 first = indptr[0], width = a.heads * a.width;
    this->point_at({first, indptr[rows.end - rows.begin]});
    for (i64 row = rows.begin; row < rows.end; ++row) {
      const Span nonzeros{indptr[row - rows.begin], indptr[row - rows.begin + 1]};
      sum_row(gradients, row, at + (nonzeros.begin - first), nonzeros);
      if (gradients.sums) {
        S* sums = gradients.sums + row * (width + a.heads);
        std::memcpy(sums, plain, width * sizeof(S));
        std::memcpy(sums + width, number_sums, a.heads * sizeof(S));
        continue;
      }
      T* place = gradients.rows + row * width;
      for (i64 c = 0; c < width; ++c) place[c] = narrow<T>(plain[c]);
      if constexpr (!kV2) {
        std::memcpy(gradients.numbers + row * a.heads, number_sums, a.heads * sizeof(S));
      }
    }
  }
};

template <class T, Side kSide>
void attend_backward(const AttentionOperands<T>& a, const AttentionGradients<T>& gradients,
                     Span rows, const i64* indptr, char* room) {
  by_heads<Sum<T>>(a.padded, [&]<int kCount>() {
    AttentionBackward<T, kCount, kSide>(a, room).run(gradients, rows, indptr);
  });
}

// <x[h], y[h]> of one row.
template <class T, class U>
void head_products(const T* x, const U* y, i64 heads, i64 width, Sum<T>* products) {
  using S = Sum<T>;
  constexpr int kSums = 8;  // side by side
  for (i64 h = 0; h < heads; ++h) {
    S sums[kSums] = {};
    i64 c = h * width;
    const i64 end = c + width;
    for (; c + kSums <= end; c += kSums) {
      for (int i = 0; i < kSums; ++i) sums[i] += widen(x[c + i]) * widen(y[c + i]);
    }
    for (int i = 0; c + i < end; ++i) sums[i] += widen(x[c + i]) * widen(y[c + i]);
    for (int half = kSums / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    products[h] = sums[0];
  }
}

template <class T>
inline constexpr AttentionKernels<T> kAttention{
    pack_rows<T>,
    attend<T, false>,
    attend<T, true>,
    {attend_backward<T, Side::kColumns>, attend_backward<T, Side::kColumnsV2>,
     attend_backward<T, Side::kRowsV2>},
    merge_triple<Sum<T>>,
    end_triple<T>,
    head_products<T, T>,
    head_products<T, Sum<T>>};

const AttentionTable attention_table{kAttention<float>, kAttention<double>, kAttention<Bfloat16>};

}  // namespace spgnn::SPGNN_ISA
