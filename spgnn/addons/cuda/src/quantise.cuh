// Rows in few bits; kernels/torch_kernels.py defines every one of them.
#pragma once

#include "nonzeros.cuh"
#include "rows.cuh"
#include "types.cuh"

namespace spgnn {

constexpr int kChunk = 8;  // columns that a thread packs: whole bytes of any number of bits
constexpr int kHeaderBytes = 4;
constexpr unsigned kInfinityBits = 0x7f800000u;
constexpr unsigned kLeastScale = 0x08800000u;  // 2⁻¹¹⁰
constexpr unsigned kNanHeader = 0x7fc07fc0u;

__device__ inline i64 packed_bytes(i64 columns, int bits) {
  return bits == 16 ? 2 * columns : kHeaderBytes + (columns * bits + 7) / 8;
}

// 16 random bits for a column: columns c and c + 16 of each 32 share a word.
struct RandomHalves {
  unsigned start, factor;
  bool stochastic;

  __device__ RandomHalves(i64 key, i64 id, bool drawn) : stochastic(drawn) {
    const u64 stream = stream_of(key, id);
    start = static_cast<unsigned>(stream);
    factor = static_cast<unsigned>(stream >> 32) | 1u;
  }
  // Of column v of the chunk at c.
  __device__ unsigned at(i64 c, int v) const {
    if (!stochastic) return 0x8000u;
    const unsigned chunk = static_cast<unsigned>(c);
    unsigned z = start + (chunk / 32 * 16 + chunk % 16 + static_cast<unsigned>(v)) * 0x9e3779b9u;
    z = (z ^ (z >> 16)) * factor;
    z ^= z >> 16;
    return chunk % 32 < 16 ? z & 0xffffu : z >> 16;
  }
};

// Minimum and scale of a row: bfloat16, rounded outward.
template <class Real> struct RowScale {
  Real low, scale, inverse;
  unsigned header;

  __device__ RowScale(Real smallest, Real largest, int bits) {
    const Real levels = static_cast<Real>((1u << bits) - 1u);
    float nearest = static_cast<float>(smallest);
    if (nearest > smallest) nearest = nextafterf(nearest, -__uint_as_float(kInfinityBits));
    unsigned low_bits = __float_as_uint(nearest + 0.0f);  // one zero for both
    low_bits = (low_bits + (low_bits >> 31) * 0xffffu) & 0xffff0000u;
    low = __uint_as_float(low_bits);
    const Real span = (largest - low) + Real(0), back = span - largest;
    const Real beyond = (largest - (span - back)) - (low + back);  // Knuth's two-sum
    nearest = static_cast<float>(span / levels);
    if (nearest < span / levels) nearest = nextafterf(nearest, __uint_as_float(kInfinityBits));
    unsigned scale_bits = (__float_as_uint(nearest) + 0xffffu) & 0xffff0000u;
    const Real reach = __uint_as_float(scale_bits) * levels;
    if (reach < span || (reach == span && beyond > 0)) scale_bits += 0x10000u;
    if (scale_bits != 0 && scale_bits < kLeastScale) scale_bits = kLeastScale;
    scale = __uint_as_float(scale_bits);
    const float most = __uint_as_float(scale_bits) * static_cast<float>(levels);
    const bool fits =
        __float_as_uint(most) < kInfinityBits && (low_bits & kInfinityBits) < kInfinityBits;
    inverse = fits && scale_bits != 0 ? Real(65536) / scale : Real(0);
    header = fits ? low_bits >> 16 | scale_bits : kNanHeader;
  }
};

// The same in the other direction.
template <class Real> __device__ inline Real arrived_code(Real low, Real scale, unsigned code) {
  return low + scale * static_cast<Real>(code);
}

template <int kWords> using Words = Pack<unsigned, kWords>;

__device__ inline bool is_aligned(const unsigned char* place, int bytes) {
  return reinterpret_cast<u64>(place) % static_cast<unsigned>(bytes) == 0;
}

// The first bytes of some words, by the widest stores that their number and place allow.
template <int kWords>
__device__ inline void put(unsigned char* to, const Words<kWords>& words, int bytes) {
  if (bytes == 4 * kWords && is_aligned(to, 4 * kWords)) {
    store(reinterpret_cast<unsigned*>(to), words);
    return;
  }
  const bool by_four = is_aligned(to, 4), by_two = is_aligned(to, 2);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    unsigned char* const here = to + 4 * i;
    const unsigned word = words.lane[i];
    const int left = bytes - 4 * i;
    if (by_four && left >= 4) {
      *reinterpret_cast<unsigned*>(here) = word;
      continue;
    }
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      if (by_two && left >= k + 2) {
        *reinterpret_cast<unsigned short*>(here + k) = static_cast<unsigned short>(word >> (8 * k));
        continue;
      }
      if (left > k) here[k] = static_cast<unsigned char>(word >> (8 * k));
      if (left > k + 1) here[k + 1] = static_cast<unsigned char>(word >> (8 * k + 8));
    }
  }
}

__device__ inline unsigned two_bytes(const unsigned char* from) {
  if (is_aligned(from, 2)) return *reinterpret_cast<const unsigned short*>(from);
  return from[0] | static_cast<unsigned>(from[1]) << 8;
}

// Words from any place.
template <int kWords> __device__ inline Words<kWords> get(const unsigned char* from) {
  if (is_aligned(from, 4 * kWords)) {
    return load<unsigned, kWords>(reinterpret_cast<const unsigned*>(from));
  }
  Words<kWords> words;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words.lane[i] = two_bytes(from + 4 * i) | two_bytes(from + 4 * i + 2) << 16;
  }
  return words;
}

// kChunk columns from c on of what is sent: x, with what was lost of it before.
template <class T, int kVector>
__device__ inline void load_chunk(const T* x, const T* residual, i64 c, i64 columns, Sum<T>* sent) {
#pragma unroll
  for (int v = 0; v < kChunk; v += kVector) {
    if (c + v >= columns) break;
    const Pack<T, kVector> now = load<T, kVector>(x + c + v);
#pragma unroll
    for (int w = 0; w < kVector; ++w) sent[v + w] = widen(now.lane[w]);
    if (!residual) continue;
    const Pack<T, kVector> before = load<T, kVector>(residual + c + v);
#pragma unroll
    for (int w = 0; w < kVector; ++w) sent[v + w] += widen(before.lane[w]);
  }
}

// Notes what arrives in place of column v of the chunk at c.
template <class T> struct Notes {
  const T* x;
  T* residual;  // or null
  double error = 0, size = 0;
  T left[kChunk] = {};

  __device__ void take(int v, i64 c, Sum<T> sent, Sum<T> arrived) {
    T stored;
    narrow(arrived, stored);
    const Sum<T> wide = widen(stored);
    const double exact = widen(x[c + v]), e = wide - exact;
    error += e * e;
    size += exact * exact;
    narrow(wide - wide == 0 ? sent - wide : Sum<T>(0), left[v]);
  }

  template <int kVector> __device__ void write(i64 c, i64 columns) {
    if (!residual) return;
#pragma unroll
    for (int v = 0; v < kChunk; v += kVector) {
      if (c + v >= columns) break;
      Pack<T, kVector> pack;
#pragma unroll
      for (int w = 0; w < kVector; ++w) pack.lane[w] = left[v + w];
      store(residual + c + v, pack);
    }
  }
};

template <class T, int kVector>
__device__ inline void round_chunk(const Sum<T>* sent, const RandomHalves& random, i64 c, int count,
                                   unsigned char* to, Notes<T>& notes, bool noting) {
  Words<kChunk / 2> words{};
#pragma unroll
  for (int v = 0; v < kChunk; ++v) {
    if (v >= count) break;
    const float value = static_cast<float>(sent[v]);
    const unsigned bits = __float_as_uint(value);
    const unsigned rounded = value != value ? 0x7fc00000u : bits + random.at(c, v);
    words.lane[v / 2] |= v % 2 ? rounded & 0xffff0000u : rounded >> 16;
    if (noting) notes.take(v, c, sent[v], __uint_as_float(rounded & 0xffff0000u));
  }
  put(to + 2 * c, words, 2 * count);
}

__device__ inline unsigned nearest(float x) { return __float2uint_rn(x); }
__device__ inline unsigned nearest(double x) { return __double2uint_rn(x); }

template <class T>
__device__ inline void pack_chunk(const Sum<T>* sent, const RowScale<Sum<T>>& scale, int bits,
                                  const RandomHalves& random, i64 c, int count, unsigned char* to,
                                  Notes<T>& notes, bool noting) {
  const unsigned most = (1u << bits) - 1u;
  unsigned halves[2] = {};  // of the chunk
#pragma unroll
  for (int v = 0; v < kChunk; ++v) {
    if (v >= count) break;
    unsigned code = 0;
    if (scale.header != kNanHeader) {
      code = (nearest((sent[v] - scale.low) * scale.inverse) + random.at(c, v)) >> 16;
      if (code > most) code = most;
    }
    halves[v / 4] |= code << (v % 4 * bits);
    if (noting) {
      const Sum<T> nothing = __uint_as_float(0x7fc00000u);
      notes.take(v, c, sent[v],
                 scale.header == kNanHeader ? nothing : arrived_code(scale.low, scale.scale, code));
    }
  }
  const u64 word = halves[0] | static_cast<u64>(halves[1]) << (4 * bits);
  const Words<2> words{{static_cast<unsigned>(word), static_cast<unsigned>(word >> 32)}};
  put(to + kHeaderBytes + c * bits / 8, words, (count * bits + 7) / 8);
}

// kLanes threads pack a row. Every thread stays to the end, for all meet in between.
template <class T, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    quantise_rows(const T* x, i64 x_stride, const int* narrow_rows, const i64* wide_rows,
                  i64 all_bits, const i64* ids, i64 key, i64 stochastic, T* residual,
                  i64 residual_stride, double* lost, unsigned char* packed, i64 count,
                  i64 columns) {
  using Real = Sum<T>;
  __shared__ double shared_sums[kThreads];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const i64 i = static_cast<i64>(blockIdx.x) * (kThreads / kLanes) + thread / kLanes;
  const bool mine = i < count;
  const T* const own = x + (mine ? listed_row(narrow_rows, wide_rows, i) : 0) * x_stride;
  T* const before = mine && residual ? residual + i * residual_stride : nullptr;
  const int bits = static_cast<int>(all_bits);
  const Real infinity = __uint_as_float(kInfinityBits);
  Real smallest = columns ? infinity : Real(0), largest = -smallest;
  Real sent[kChunk];
  const bool scales = bits != 16;  // bfloat16 has no header: its rows are read once
  for (i64 c = lane * kChunk; mine && scales && c < columns; c += kLanes * kChunk) {
    load_chunk<T, kVector>(own, before, c, columns, sent);
#pragma unroll
    for (int v = 0; v < kChunk; ++v) {
      if (c + v >= columns) break;
      if (sent[v] < smallest) smallest = sent[v];
      if (sent[v] > largest) largest = sent[v];
      if (sent[v] - sent[v] != 0) largest = infinity;  // also where there is a NaN
    }
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const Real less = __shfl_xor_sync(mates<kLanes>(), smallest, offset);
    const Real more = __shfl_xor_sync(mates<kLanes>(), largest, offset);
    if (less < smallest) smallest = less;
    if (more > largest) largest = more;
  }
  Notes<T> notes{own, before};
  if (mine) {
    unsigned char* const to = packed + i * packed_bytes(columns, bits);
    const RandomHalves random(key, ids[i], stochastic != 0);
    const RowScale<Real> scale(smallest, largest, scales ? bits : 1);
    const bool noting = before || lost;
    if (scales && lane == 0) put(to, Words<1>{{scale.header}}, kHeaderBytes);
    for (i64 c = lane * kChunk; c < columns; c += kLanes * kChunk) {
      // One chunk a thread is what it has read already.
      if (!scales || columns > kLanes * kChunk) {
        load_chunk<T, kVector>(own, before, c, columns, sent);
      }
      const int some = columns - c < kChunk ? static_cast<int>(columns - c) : kChunk;
      if (bits == 16) {
        round_chunk<T, kVector>(sent, random, c, some, to, notes, noting);
      } else {
        pack_chunk<T>(sent, scale, bits, random, c, some, to, notes, noting);
      }
      notes.template write<kVector>(c, columns);
    }
  }
  if (!lost) return;
  const auto sum = [](double a, double b) { return a + b; };
  const double error = over_group<kThreads>(notes.error, shared_sums, sum);
  const double size = over_group<kThreads>(notes.size, shared_sums, sum);
  if (thread == 0) {
    lost[2 * static_cast<i64>(blockIdx.x)] = error;
    lost[2 * static_cast<i64>(blockIdx.x) + 1] = size;
  }
}

// kLanes threads unpack a row, kVector columns at a time.
template <class T, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    dequantise_rows(const unsigned char* packed, i64 all_bits, const int* narrow_rows,
                    const i64* wide_rows, T* y, i64 y_stride, i64 count, i64 columns) {
  using Real = Sum<T>;
  const int thread = static_cast<int>(threadIdx.x);
  const i64 i = static_cast<i64>(blockIdx.x) * (kThreads / kLanes) + thread / kLanes;
  if (i >= count) return;
  const int bits = static_cast<int>(all_bits);
  const unsigned char* from = packed + i * packed_bytes(columns, bits);
  T* const own = y + listed_row(narrow_rows, wide_rows, i) * y_stride;
  Real low = 0, scale = 0;
  if (bits != 16 && columns) {
    low = __uint_as_float(two_bytes(from) << 16);
    scale = __uint_as_float(two_bytes(from + 2) << 16);
    from += kHeaderBytes;
  }
  for (i64 c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    unsigned codes[kVector];
    if (bits == 16 && kVector % 2 == 0) {
      const Words<(kVector + 1) / 2> words = get<(kVector + 1) / 2>(from + 2 * c);
#pragma unroll
      for (int v = 0; v < kVector; ++v) codes[v] = words.lane[v / 2] >> (v % 2 * 16) & 0xffffu;
    } else if (bits == 8 && kVector % 4 == 0) {
      const Words<(kVector + 3) / 4> words = get<(kVector + 3) / 4>(from + c);
#pragma unroll
      for (int v = 0; v < kVector; ++v) codes[v] = words.lane[v / 4] >> (v % 4 * 8) & 0xffu;
    } else {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const i64 bit = (c + v) * bits;
        codes[v] = bits == 16 ? two_bytes(from + bit / 8)
                              : from[bit / 8] >> (bit % 8) & ((1u << bits) - 1u);
      }
    }
    Pack<T, kVector> pack;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (bits == 16) {
        narrow(static_cast<Real>(__uint_as_float(codes[v] << 16)), pack.lane[v]);
      } else {
        narrow(arrived_code(low, scale, codes[v]), pack.lane[v]);
      }
    }
    store(own + c, pack);
  }
}

}  // namespace spgnn
