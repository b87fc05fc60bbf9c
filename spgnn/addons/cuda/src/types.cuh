// Element types, packs of neighbouring elements. No header is included: NVRTC has none of them.
#pragma once

using i64 = long long;
using u64 = unsigned long long;

namespace spgnn {

constexpr int kThreads = 128;  // of a block, in every kernel

// Storage only; arithmetic on it happens in float.
struct Bfloat16 {
  unsigned short bits;
};

template <class T> struct SumOf {
  using type = T;
};
template <> struct SumOf<Bfloat16> {
  using type = float;
};
template <class T> using Sum = typename SumOf<T>::type;  // the type in which sums of T are taken

__device__ inline float widen(float value) { return value; }
__device__ inline double widen(double value) { return value; }
__device__ inline float widen(Bfloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

__device__ inline void narrow(float sum, float& stored) { stored = sum; }
__device__ inline void narrow(double sum, double& stored) { stored = sum; }
__device__ inline void narrow(float sum, Bfloat16& stored) {
  const unsigned bits = __float_as_uint(sum);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  // Round to nearest, ties to even; a carry into the exponent is right, even up to infinity.
  const unsigned rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  stored.bits = static_cast<unsigned short>((is_nan ? 0x7fc00000u : rounded) >> 16);
}

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }

// Number i of a list of one of two widths, or i itself without a list.
__device__ inline i64 listed_row(const int* narrow, const i64* wide, i64 i) {
  return narrow ? narrow[i] : wide ? wide[i] : i;
}

// f(i, j) for all i < kOuter and j < kInner, which are constants where registers are numbered.
template <int kOuter, int kInner, class Function> __device__ inline void unrolled(Function f) {
#pragma unroll
  for (int i = 0; i < kOuter; ++i) {
#pragma unroll
    for (int j = 0; j < kInner; ++j) f(i, j);
  }
}

template <class T, int kVector>
constexpr unsigned kPackAlignment = kVector * sizeof(T) < 16 ? kVector * sizeof(T) : 16;

// Neighbouring elements that one instruction moves; 16 bytes is the most it can.
template <class T, int kVector> struct alignas(kPackAlignment<T, kVector>) Pack {
  T lane[kVector];
};

template <unsigned kBytes> struct WordOf;
template <> struct WordOf<2> {
  using type = unsigned short;
};
template <> struct WordOf<4> {
  using type = unsigned;
};
template <> struct WordOf<8> {
  using type = uint2;
};
template <> struct WordOf<16> {
  using type = uint4;
};

// Read-only data that other blocks will want as well.
template <class T, int kVector>
__device__ inline Pack<T, kVector> load_shared_by_many(const void* p) {
  using Word = typename WordOf<sizeof(Pack<T, kVector>)>::type;
  const Word word = __ldg(static_cast<const Word*>(p));
  return reinterpret_cast<const Pack<T, kVector>&>(word);
}

// A number that no other block will want: it need not push rows of X out of caches.
template <class T> __device__ inline T load_once(const T* p) {
#ifdef __CUDA_ARCH__
  return __ldcs(p);
#else
  return *p;
#endif
}

template <class T, int kVector> __device__ inline Pack<T, kVector> load_pack_once(const void* p) {
  using Word = typename WordOf<sizeof(Pack<T, kVector>)>::type;
  const Word word = load_once(static_cast<const Word*>(p));
  return reinterpret_cast<const Pack<T, kVector>&>(word);
}

template <class T, int kVector> __device__ inline Pack<T, kVector> load(const T* p) {
  return *reinterpret_cast<const Pack<T, kVector>*>(p);
}

template <class T, int kVector> __device__ inline void store(T* p, const Pack<T, kVector>& pack) {
  *reinterpret_cast<Pack<T, kVector>*>(p) = pack;
}

// The value, out of the compiler's sight: it stays in registers and is not computed again.
template <class T> __device__ inline T keep(T value) {
#ifdef __CUDA_ARCH__
  asm("" : "+l"(value));
#endif
  return value;
}

// The threads of a warp that share what they work on: neighbours, so many.
template <int kLanes> __device__ inline unsigned mates() {
  if (kLanes == 32) return 0xffffffffu;
  return ((1u << kLanes % 32) - 1u) << (threadIdx.x % 32 / kLanes * kLanes);
}

// Start fetching a line that a later instruction of this block will read.
__device__ inline void prefetch(const void* p) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
  (void)p;
#endif
}

}  // namespace spgnn
