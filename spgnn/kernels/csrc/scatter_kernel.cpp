// Attention backward by rows: a row makes its weights again and sends to its sources. Nothing of
// forward is needed: D_i = Σ_j α_ij <g_i, z_j> is made of products that are needed anyway.
#include "attention_rows.hpp"

namespace spgnn::SPGNN_ISA {

// Own rows are x (GATv2) and g, or numbers d; packed are z and, in GAT, s.
template <class T, int kCount, bool kV2> struct Weighing : Neighbours<T, kCount> {
  using Base = Neighbours<T, kCount>;
  using S = typename Base::S;
  using V = typename Base::V;
  using P = typename Base::P;
  static constexpr int L = Base::L;
  static constexpr S kLeast = -static_cast<S>(__builtin_inf());
  using Base::a, Base::room, Base::at, Base::columns, Base::packs, Base::period;

  const AttentionLoops& loops;
  i64* sources = room.template take<i64>(kWeighed);
  S* scores = room.template take<S>(kWeighed * a.padded + 16);
  S* products = room.template take<S>(kWeighed * a.padded + 16);
  S* kept = room.template take<S>(kWeighed * a.padded + 16);  // factors of dropout
  S* d = room.template take<S>(period);
  S* top = room.template take<S>(period);
  S* m = room.template take<S>(period);
  S* n = room.template take<S>(period);      // then its reciprocal
  S* inner = room.template take<S>(period);  // D
  S* number_sums = room.template take<S>(period);
  S* x = room.template take_zeros<S>(columns);
  S* g = room.template take_zeros<S>(columns);
  S* vector = room.template take_zeros<S>(columns);
  S* sum = room.template take<S>(columns);
  S* plain = room.template take<S>(columns);

  Weighing(const AttentionOperands<T>& operands, const AttentionLoops& more, char* memory)
      : Base(operands, memory), loops(more) {
    if constexpr (kV2) interleave(a.a, a.heads, a.padded, a.width, vector);
  }

  i64 nonzeros_of(i64 row) const {
    return a.indptr[row + 1] - a.indptr[row] + (loops.there && loops.there[row]);
  }

  void take_row(i64 row) {
    interleave(a.own[1][row], a.heads, a.padded, a.width, g);
    if constexpr (kV2) {
      interleave(a.own[0][row], a.heads, a.padded, a.width, x);
    } else {
      this->repeat_heads(a.own_numbers[0] + row * a.heads, d);
    }
  }

  [[gnu::always_inline]] V argument(const T* row, i64 k) const {
    return load_vector<V>(x + k * L) + load_wide(row + k * L);
  }

  // Of some nonzeros of a row: sources, what scores are made of (GATv2: scores), products with g.
  void gather(i64 row, Span nonzeros) {
    const i64 begin = a.indptr[row], listed = a.indptr[row + 1] - begin;
    const i64 count = nonzeros.end - nonzeros.begin;
    for (i64 e = 0; e < count; ++e) {
      const i64 number = nonzeros.begin + e;
      sources[e] = number < listed ? a.indices[begin + number] : loops.columns[row];
      at[e] = a.others.data + sources[e] * a.others.stride;
    }
    for (i64 e = count; e < count + kAttentionAhead; ++e) at[e] = a.others.data;
    const int lines = lines_of(columns * static_cast<i64>(sizeof(T)) +
                               (kV2 ? 0 : a.padded * static_cast<i64>(sizeof(S))));
    for (i64 e = 0; e < count; ++e) {
      prefetch_lines(at[e + kAttentionAhead], lines);
      const T* source = this->matrix(at[e]);
      const i64 place = e * a.padded;
      if constexpr (kV2) {
        this->sum_packs(scores + place, [&](i64 k) {
          const V both = argument(source, k);
          return (both > 0 ? both : both * a.slope) * load_vector<V>(vector + k * L);
        });
      } else {
        const S* s = reinterpret_cast<const S*>(source + columns);
        this->for_each_part([&](i64 h) { store_part(scores + place + h, load_part<P>(s + h)); });
      }
      this->sum_packs(products + place,
                      [&](i64 k) { return load_vector<V>(g + k * L) * load_wide(source + k * L); });
    }
    if (a.dropout.own_ids) {
      this->make_factors(row, count, kept, [&](i64 e) { return sources[e]; });
    }
  }

  // exp(score − m) in every lane, and what the score's argument is.
  [[gnu::always_inline]] V weight_of(i64 i, i64 h, V& number) const {
    number = load_vector<V>(scores + i);
    V score = number;
    if constexpr (!kV2) {
      number += load_vector<V>(d + h);
      score = number > 0 ? number : number * a.slope;
    }
    return exp_of_negative<S>(score - load_vector<V>(m + h));
  }

  // The largest score of a row, the sum of exp(score − m), and that of its products with g.
  void summarise(i64 row, i64 total) {
    for (i64 i = 0; i < period; ++i) top[i] = kLeast, m[i] = n[i] = inner[i] = 0;
    for (i64 first = 0; first < total; first += kWeighed) {
      const i64 count = total - first < kWeighed ? total - first : kWeighed;
      gather(row, {first, first + count});
      raise(count);
      this->for_each_vector(count, [&](i64 i, i64 h) {
        V number, product = load_vector<V>(products + i);
        if (a.dropout.own_ids) product *= load_vector<V>(kept + i);
        const i64 lanes = count * a.padded - i;
        const V weight = first_lanes<S>(weight_of(i, h, number), lanes);
        store_vector(n + h, load_vector<V>(n + h) + weight);
        product = first_lanes<S>(product, lanes);
        store_vector(inner + h, load_vector<V>(inner + h) + weight * product);
      });
    }
    this->fold(n), this->fold(inner);
    for (i64 h = 0; h < a.padded; ++h) {
      const S one = n[h] == 0 ? S{0} : 1 / n[h], all = inner[h] * one;
      for (i64 i = h; i < period; i += a.padded) n[i] = one, inner[i] = all;
    }
  }

  // Compare what is summed up so far with the largest score of these nonzeros as well.
  void raise(i64 count) {
    for (i64 h = 0; h < a.padded; ++h) number_sums[h] = kLeast;
    for (i64 e = 0; e < count; ++e) {
      this->for_each_part([&](i64 h) {
        const P mine = load_part<P>(scores + e * a.padded + h);
        const P before = load_part<P>(number_sums + h);
        store_part(number_sums + h, mine > before ? mine : before);
      });
    }
    for (i64 h = 0; h < a.padded; ++h) {
      S score = number_sums[h];
      if constexpr (!kV2) {
        score += d[h];
        score = score > 0 || score == kLeast ? score : score * a.slope;
      }
      const S now = score > top[h] ? score : top[h], scale = exp_difference(top[h], now);
      for (i64 i = h; i < period; i += a.padded) {
        n[i] *= scale, inner[i] *= scale;
        m[i] = now == kLeast ? S{0} : now;
      }
      top[h] = now;
    }
  }

  // Weights go to `scores`, gradients of scores (GAT: of LeakyReLU's arguments) to `products`.
  void make_weights(i64 count) {
    this->for_each_vector(count, [&](i64 i, i64 h) {
      V number, factor = V{} + S(1), slope = V{} + S(1);
      V weight = weight_of(i, h, number) * load_vector<V>(n + h);
      if constexpr (!kV2) slope = number > 0 ? slope : a.slope + V{};
      if (a.dropout.own_ids) factor = load_vector<V>(kept + i);
      V change = load_vector<V>(products + i) * factor - load_vector<V>(inner + h);
      change = first_lanes<S>(weight * change * slope, count * a.padded - i);
      store_vector(scores + i, weight * factor);
      store_vector(products + i, change);
      if constexpr (!kV2) {
        store_vector(number_sums + h, load_vector<V>(number_sums + h) + change);
      }
    });
  }

  // GATv2: what the gradients of scores give x and a.
  void add_scores(i64 count, S* of_a) {
    for (i64 e = 0; e < count; ++e) {
      const T* source = this->matrix(at[e]);
      const S* change = products + e * a.padded;
      for (i64 k = 0; k < packs; ++k) {
        const V both = argument(source, k), of_score = this->weights_of(change, k);
        const V on = of_score * load_vector<V>(vector + k * L);
        store_vector(sum + k * L, load_vector<V>(sum + k * L) + (both > 0 ? on : on * a.slope));
        const V relu = both > 0 ? both : both * a.slope;
        store_vector(of_a + k * L, load_vector<V>(of_a + k * L) + of_score * relu);
      }
    }
  }

  // Weighs some nonzeros of a row that is summarised, to a place of the rows that are weighed.
  void weigh_row(i64 row, Span nonzeros, bool at_hand, const WeighedRows<S>& to, i64 place,
                 const AttentionSent<T>& sent, S* of_a) {
    for (i64 i = 0; i < period; ++i) number_sums[i] = 0;
    for (i64 c = 0; c < columns; ++c) sum[c] = 0;
    for (i64 first = nonzeros.begin; first < nonzeros.end; first += kWeighed) {
      const i64 left = nonzeros.end - first, count = left < kWeighed ? left : kWeighed;
      if (!at_hand) gather(row, {first, first + count});
      make_weights(count);
      if constexpr (kV2) add_scores(count, of_a);
      std::memcpy(to.columns + place, sources, count * sizeof(i64));
      const std::size_t bytes = count * a.padded * sizeof(S);
      std::memcpy(to.weights + place * a.padded, scores, bytes);
      std::memcpy(to.changes + place * a.padded, products, bytes);
      place += count;
    }
    if constexpr (kV2) {
      separate(sum, a.heads, a.padded, a.width, plain);
      T* ends = sent.rows + row * a.heads * a.width;
      for (i64 c = 0; c < a.heads * a.width; ++c) { ends[c] += plain[c]; }
    } else {
      this->fold(number_sums);
      for (i64 h = 0; h < a.heads; ++h) { sent.numbers[row * a.heads + h] += number_sums[h]; }
    }
  }
  // Adds what was weighed to the sources of one owner, in the order of rows.
  void scatter(const WeighedRows<S>& from, const AttentionSent<T>& sent, u32 owner, u32 owners) {
    const i64 end = from.begins[from.rows.end - from.rows.begin];
    for (i64 row = from.rows.begin; row < from.rows.end; ++row) {
      const i64* begins = from.begins + (row - from.rows.begin);
      if (begins[0] < begins[1]) take_row(row);
      for (i64 e = begins[0]; e < begins[1]; ++e) {
        const i64 ahead = from.columns[e + 8 < end ? e + 8 : e];
        __builtin_prefetch(sent.sums + ahead * sent.stride, 1);
        const i64 source = from.columns[e];
        if (owners > 1 && (source >> 4) % owners != owner) continue;
        add(from, e, reinterpret_cast<S*>(sent.sums + source * sent.stride), source);
      }
    }
  }
  void add(const WeighedRows<S>& from, i64 e, S* place, i64 source) const {
    const S *w = from.weights + e * a.padded, *change = from.changes + e * a.padded;
    const T* row = this->matrix(a.others.data + source * a.others.stride);
    for (i64 k = 0; k < packs; ++k) {
      V all = this->weights_of(w, k) * load_vector<V>(g + k * L);
      if constexpr (kV2) {
        const V on = this->weights_of(change, k) * load_vector<V>(vector + k * L);
        all += argument(row, k) > 0 ? on : on * a.slope;
      }
      store_vector(place + k * L, load_vector<V>(place + k * L) + all);
    }
    if constexpr (!kV2) {
      for (i64 h = 0; h < a.heads; ++h) place[columns + h] += change[h];
    }
  }

  void run(const AttentionSent<T>& sent, const WeighedRows<S>& weighed,
           const WeighingTask<S>& task) {
    if (task.ask == Ask::kScatter) return scatter(weighed, sent, task.owner, task.owners);
    for (i64 row = task.rows.begin; row < task.rows.end; ++row) {
      const i64 total = nonzeros_of(row);
      if (total == 0) continue;
      take_row(row);
      const std::size_t bytes = a.padded * sizeof(S);
      if (task.ask == Ask::kPiece) {
        const S* numbers = task.summary;
        for (i64 i = 0; i < period; ++i) {
          const i64 h = i % a.padded;
          m[i] = numbers[h], n[i] = numbers[a.padded + h], inner[i] = numbers[2 * a.padded + h];
        }
        weigh_row(row, task.piece, false, weighed, 0, sent, task.a);
        continue;
      }
      summarise(row, total);
      if (task.ask == Ask::kSummary) {
        std::memcpy(task.summary, m, bytes);
        std::memcpy(task.summary + a.padded, n, bytes);
        std::memcpy(task.summary + 2 * a.padded, inner, bytes);
        continue;
      }
      const i64 place = weighed.begins[row - weighed.rows.begin];
      weigh_row(row, {0, total}, total <= kWeighed, weighed, place, sent, task.a);
    }
  }
};

template <class T, bool kV2>
void weigh(const AttentionOperands<T>& a, const AttentionLoops& loops, const AttentionSent<T>& sent,
           const WeighedRows<Sum<T>>& weighed, const WeighingTask<Sum<T>>& task, char* room) {
  by_heads<Sum<T>>(a.padded, [&]<int kCount>() {
    Weighing<T, kCount, kV2>(a, loops, room).run(sent, weighed, task);
  });
}

const WeighingTable weighing_table{{{weigh<float, false>, weigh<float, true>}},
                                   {{weigh<double, false>, weigh<double, true>}}};

}  // namespace spgnn::SPGNN_ISA
