// Vectors: one block of N native registers of float (or double), loaded from and stored to any dtype.
//
// Decisions:
// - GCC/Clang vector types, so one source serves every instruction set; intrinsics only where a type is missing.
// - Everything sits in an anonymous namespace: this header is compiled several times with different machine flags,
//   and a function shared between them would be linked once, possibly with instructions the machine lacks.
//   For the same reason no standard-library templates here.
// - bfloat16 blocks hold the even elements of each register pair, then the odd ones: unpacking is one shift and one
//   mask instead of a widening shuffle. Arrays that meet such blocks (gain, bias, sums) are kept in the same order;
//   `slot` maps an element to its place.
#pragma once
#include <cmath>
#include <cstring>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels.h"

namespace {

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

#if defined(__AVX512F__)
constexpr int register_bytes = 64;
constexpr int N = 4;
#elif defined(__AVX2__)
constexpr int register_bytes = 32;
constexpr int N = 4;
#else
constexpr int register_bytes = 16;
constexpr int N = 4;
#endif

template <class C> struct Lanes;
template <> struct Lanes<float> {
    typedef float V __attribute__((vector_size(register_bytes)));
    typedef uint32_t U __attribute__((vector_size(register_bytes)));
    static constexpr int W = register_bytes / 4;
};
template <> struct Lanes<double> {
    typedef double V __attribute__((vector_size(register_bytes)));
    typedef uint64_t U __attribute__((vector_size(register_bytes)));
    static constexpr int W = register_bytes / 8;
};

template <class T> struct Compute { typedef float type; };
template <> struct Compute<double> { typedef double type; };

template <class To, class From> inline __attribute__((always_inline)) To bitcast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}

// One register from or to any address. Not memcpy: GCC splits a 32-byte copy in two.
template <class V> inline __attribute__((always_inline)) V load_register(const void* p) {
    typedef V Anywhere __attribute__((aligned(1), may_alias));
    return *(const Anywhere*)p;
}
template <class V> inline __attribute__((always_inline)) void store_register(void* p, V v) {
    typedef V Anywhere __attribute__((aligned(1), may_alias));
    *(Anywhere*)p = v;
}

template <class C> struct Block {
    typedef typename Lanes<C>::V V;
    typedef typename Lanes<C>::U U;
    static constexpr int W = Lanes<C>::W;
    static constexpr int B = W * N;
    V v[N];

    static inline __attribute__((always_inline)) Block all(C c) {
        Block r;
        for (int i = 0; i < N; ++i) r.v[i] = c - V{};
        return r;
    }
};

#define NORMLAB_BLOCK_OP(op)                                                                       \
    template <class C> inline __attribute__((always_inline)) Block<C> operator op(Block<C> a, const Block<C>& b) { \
        for (int i = 0; i < N; ++i) a.v[i] = a.v[i] op b.v[i];                                     \
        return a;                                                                                  \
    }                                                                                              \
    template <class C> inline __attribute__((always_inline)) Block<C> operator op(Block<C> a, C b) { \
        for (int i = 0; i < N; ++i) a.v[i] = a.v[i] op b;                                          \
        return a;                                                                                  \
    }
NORMLAB_BLOCK_OP(+)
NORMLAB_BLOCK_OP(-)
NORMLAB_BLOCK_OP(*)
NORMLAB_BLOCK_OP(/)
#undef NORMLAB_BLOCK_OP

// Keep the first `count` elements of the block (in element order, whatever the slot order), zero the others.
template <class C> struct LaneMask { typename Lanes<C>::U u[N]; };
template <class C> inline __attribute__((always_inline)) Block<C> keep(Block<C> a, const LaneMask<C>& m) {
    typedef typename Block<C>::U U;
    typedef typename Block<C>::V V;
    for (int i = 0; i < N; ++i) a.v[i] = bitcast<V>(bitcast<U>(a.v[i]) & m.u[i]);
    return a;
}

// Where element j of a tensor row lives in arrays kept in block order.
template <class T> inline int64_t slot(int64_t j) { return j; }
template <> inline int64_t slot<bf16>(int64_t j) {
    constexpr int W = Lanes<float>::W;
    const int64_t in_pair = j % (2 * W);
    return j - in_pair + (in_pair & 1) * W + in_pair / 2;
}

template <class T> LaneMask<typename Compute<T>::type> first(int64_t count) {
    typedef typename Compute<T>::type C;
    LaneMask<C> m;
    memset(&m, 0, sizeof(m));
    for (int64_t j = 0; j < count && j < Block<C>::B; ++j) {
        const int64_t s = slot<T>(j);
        m.u[s / Block<C>::W][s % Block<C>::W] = ~(decltype(m.u[0][0] + 0))0;
    }
    return m;
}

// Sum of all lanes, by halving: the order is fixed for a given instruction set.
template <class V, class C> inline __attribute__((always_inline)) C sum_lanes(V v) {
    if constexpr (sizeof(V) == 16) {
        C lane[sizeof(V) / sizeof(C)];
        __builtin_memcpy(lane, &v, sizeof(v));
        if constexpr (sizeof(C) == 4) return (lane[0] + lane[2]) + (lane[1] + lane[3]);
        else return lane[0] + lane[1];
    } else {
        typedef C Half __attribute__((vector_size(sizeof(V) / 2)));
        Half half[2];
        __builtin_memcpy(half, &v, sizeof(v));
        return sum_lanes<Half, C>(half[0] + half[1]);
    }
}
template <class C> inline __attribute__((always_inline)) C horizontal(const Block<C>& b) {
    return sum_lanes<typename Block<C>::V, C>((b.v[0] + b.v[1]) + (b.v[2] + b.v[3]));
}

// Ask for the memory of a block that will be needed soon. Harmless beyond the end of a tensor.
template <bool to_write = false, class T> inline __attribute__((always_inline)) void prefetch(const T* p) {
    constexpr int bytes = Block<typename Compute<T>::type>::B * (int)sizeof(T);
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)p + i, to_write, 3);
}

// ---- scalars --------------------------------------------------------------------------------------------------

inline float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31) return bitcast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {
        const float magnitude = (float)mantissa * 5.9604644775390625e-8f;  // 2^-24
        return bitcast<float>(sign | bitcast<uint32_t>(magnitude));
    }
    return bitcast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}
inline uint16_t float_to_half(float f) {
    const uint32_t u = bitcast<uint32_t>(f), sign = (u >> 16) & 0x8000;
    const uint32_t a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                     // rounds to infinity
    if (a < 0x38800000) {                                                      // subnormal half
        const float shifted = bitcast<float>(a) + 0.5f;                        // the adder rounds to 2^-24 for us
        return (uint16_t)(sign | (bitcast<uint32_t>(shifted) - 0x3f000000));
    }
    const uint32_t odd = (a >> 13) & 1;
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + odd) >> 13));
}
inline uint16_t float_to_bf16(float f) {
    const uint32_t u = bitcast<uint32_t>(f);
    if (f != f) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline double get(const float* p, int64_t j) { return p[j]; }
inline double get(const double* p, int64_t j) { return p[j]; }
inline double get(const bf16* p, int64_t j) { return bitcast<float>((uint32_t)p[j].bits << 16); }
inline double get(const f16* p, int64_t j) { return half_to_float(p[j].bits); }
// Rounded to odd: towards zero, and the last bit set where something was lost. A second rounding, to 16 bits, then gives what one
// alone would have given; two roundings to nearest go the wrong way where the first lands on the middle between two 16-bit values.
inline float to_odd_float(double v) {
    const float nearest = (float)v;
    if ((double)nearest == v || !(nearest - nearest == 0)) return nearest;  // exact, infinite or NaN
    uint32_t bits = bitcast<uint32_t>(nearest);
    if ((nearest < 0 ? -(double)nearest : (double)nearest) > (v < 0 ? -v : v)) --bits;
    return bitcast<float>(bits | 1);
}
inline void put(float* p, int64_t j, double v) { p[j] = (float)v; }
inline void put(double* p, int64_t j, double v) { p[j] = v; }
inline void put(bf16* p, int64_t j, double v) { p[j].bits = float_to_bf16(to_odd_float(v)); }
inline void put(f16* p, int64_t j, double v) { p[j].bits = float_to_half(to_odd_float(v)); }

inline double get(normlab::DType t, const void* p, int64_t j) {
    switch (t) {
        case normlab::DType::f32: return get((const float*)p, j);
        case normlab::DType::f64: return get((const double*)p, j);
        case normlab::DType::bf16: return get((const bf16*)p, j);
        default: return get((const f16*)p, j);
    }
}
inline void put(normlab::DType t, void* p, int64_t j, double v) {
    switch (t) {
        case normlab::DType::f32: put((float*)p, j, v); break;
        case normlab::DType::f64: put((double*)p, j, v); break;
        case normlab::DType::bf16: put((bf16*)p, j, v); break;
        default: put((f16*)p, j, v);
    }
}

// ---- whole blocks ---------------------------------------------------------------------------------------------

template <class C> inline __attribute__((always_inline)) Block<C> load_same(const C* p) {
    Block<C> b;
    for (int i = 0; i < N; ++i) b.v[i] = load_register<typename Block<C>::V>(p + i * Block<C>::W);
    return b;
}
inline __attribute__((always_inline)) Block<float> load(const float* p) { return load_same(p); }
inline __attribute__((always_inline)) Block<double> load(const double* p) { return load_same(p); }
inline __attribute__((always_inline)) Block<float> load(const bf16* p) {
    typedef Lanes<float>::U U;
    Block<float> b;
    for (int i = 0; i < N / 2; ++i) {
        const U u = load_register<U>(p + i * 2 * Lanes<float>::W);
        b.v[2 * i] = bitcast<Lanes<float>::V>(u << 16);
        b.v[2 * i + 1] = bitcast<Lanes<float>::V>(u & 0xffff0000u);
    }
    return b;
}
inline __attribute__((always_inline)) Block<float> load(const f16* p) {
    Block<float> b;
    for (int i = 0; i < N; ++i) {
#if defined(__AVX512F__)
        b.v[i] = (Lanes<float>::V)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(p + i * 16)));
#elif defined(__F16C__)
        b.v[i] = (Lanes<float>::V)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + i * 8)));
#else
        for (int j = 0; j < Lanes<float>::W; ++j) b.v[i][j] = half_to_float(p[i * Lanes<float>::W + j].bits);
#endif
    }
    return b;
}

// Write one register past the caches.
template <class R> inline __attribute__((always_inline)) void stream_register(void* p, R r) {
#if defined(__AVX512F__)
    _mm512_stream_si512((__m512i*)p, bitcast<__m512i>(r));
#elif defined(__AVX2__)
    _mm256_stream_si256((__m256i*)p, bitcast<__m256i>(r));
#elif defined(__SSE2__)
    _mm_stream_si128((__m128i*)p, bitcast<__m128i>(r));
#else
    __builtin_memcpy(p, &r, sizeof(r));
#endif
}
inline void end_streaming() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

template <class C> inline __attribute__((always_inline)) void store(C* p, const Block<C>& b) {
    for (int i = 0; i < N; ++i) store_register(p + i * Block<C>::W, b.v[i]);
}
template <class C> inline __attribute__((always_inline)) void stream(C* p, const Block<C>& b) {
    for (int i = 0; i < N; ++i) stream_register(p + i * Block<C>::W, b.v[i]);
}
inline __attribute__((always_inline)) Lanes<float>::U round_bits(Lanes<float>::V v) {
    // Round to nearest even at bit 16. No NaN case: values that can be NaN here have a canonical payload (inputs
    // are 16-bit, gains are made canonical when they are unpacked), so the carry cannot leave the mantissa.
    typedef Lanes<float>::U U;
    const U u = bitcast<U>(v);
    return u + 0x7fffu + ((u >> 16) & 1u);
}
inline __attribute__((always_inline)) Lanes<float>::U pack_bf16(Lanes<float>::V even, Lanes<float>::V odd) {
#if defined(__AVX512BF16__)
    // One instruction rounds both (subnormal results, below 1.2e-38, come out as zero), one puts them in order.
    typedef uint16_t Words __attribute__((vector_size(64)));
    const Words order = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512bh both = _mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    return (Lanes<float>::U)_mm512_permutexvar_epi16((__m512i)order, bitcast<__m512i>(both));
#else
    return (round_bits(even) >> 16) | (round_bits(odd) & 0xffff0000u);
#endif
}
inline __attribute__((always_inline)) void store(bf16* p, const Block<float>& b) {
    for (int i = 0; i < N / 2; ++i) {
        store_register(p + i * 2 * Lanes<float>::W, pack_bf16(b.v[2 * i], b.v[2 * i + 1]));
    }
}
inline __attribute__((always_inline)) void stream(bf16* p, const Block<float>& b) {
    for (int i = 0; i < N / 2; ++i) stream_register(p + i * 2 * Lanes<float>::W, pack_bf16(b.v[2 * i], b.v[2 * i + 1]));
}
inline __attribute__((always_inline)) void store(f16* p, const Block<float>& b) {
    for (int i = 0; i < N; ++i) {
#if defined(__AVX512F__)
        _mm256_storeu_si256((__m256i*)(p + i * 16), _mm512_cvtps_ph((__m512)b.v[i], _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
        _mm_storeu_si128((__m128i*)(p + i * 8), _mm256_cvtps_ph((__m256)b.v[i], _MM_FROUND_TO_NEAREST_INT));
#else
        for (int j = 0; j < Lanes<float>::W; ++j) p[i * Lanes<float>::W + j].bits = float_to_half(b.v[i][j]);
#endif
    }
}

inline __attribute__((always_inline)) void stream(f16* p, const Block<float>& b) { store(p, b); }

// Partial blocks go through a zero-filled copy on the stack.
template <class T> inline Block<typename Compute<T>::type> load(const T* p, int64_t count) {
    T whole[Block<typename Compute<T>::type>::B];
    memset(whole, 0, sizeof(whole));
    memcpy(whole, p, (size_t)count * sizeof(T));
    return load(whole);
}
template <class T> inline void store(T* p, const Block<typename Compute<T>::type>& b, int64_t count) {
    T whole[Block<typename Compute<T>::type>::B];
    store(whole, b);
    memcpy(p, whole, (size_t)count * sizeof(T));
}

// Round to T and come back.
template <class T> inline __attribute__((always_inline)) Block<typename Compute<T>::type> rounded(const Block<typename Compute<T>::type>& b) {
    if constexpr (sizeof(T) == 2) {
        T whole[Block<float>::B];
        store(whole, b);
        return load(whole);
    } else {
        return b;
    }
}

// How a large output is written. Past the caches when it is too large to be found there again: that saves fetching the
// old content of every line, a third of the traffic.
struct Output {
    bool past_caches;
    template <class T> Output(const T* p, int64_t count, int64_t row) {
        past_caches = count * (int64_t)sizeof(T) >= ((int64_t)64 << 20) && (uintptr_t)p % 64 == 0 && row * sizeof(T) % 64 == 0;
    }
    template <class T, class Count>
    inline __attribute__((always_inline)) void write(T* p, const Block<typename Compute<T>::type>& b, Count count) const;
    template <class T> inline __attribute__((always_inline)) void announce(const T* p) const {
        if (!past_caches) prefetch<true>(p);
    }
    void finish() const {
        if (past_caches) end_streaming();
    }
};

// ---- arrays in block order ------------------------------------------------------------------------------------

template <class C> constexpr int64_t padded(int64_t width) {
    return (width + Block<C>::B - 1) / Block<C>::B * Block<C>::B;
}

// Unpack a parameter into block order, in compute precision, with its NaNs made canonical (see round_bits).
template <class T, class P> void unpack_from(typename Compute<T>::type* to, const P* from, int64_t width, double offset) {
    typedef typename Compute<T>::type C;
    for (int64_t j = 0; j < width; ++j) {
        const double v = get(from, j) + offset;
        to[slot<T>(j)] = v == v ? (C)v : (C)NAN;
    }
}
template <class T> void unpack(typename Compute<T>::type* to, normlab::DType type, const void* from, int64_t width,
                               double missing, double offset) {
    typedef typename Compute<T>::type C;
    const int64_t wide = padded<C>(width);
    if (!from) {
        for (int64_t j = 0; j < wide; ++j) to[j] = (C)missing;
        return;
    }
    memset(to + wide - Block<C>::B, 0, Block<C>::B * sizeof(C));
    switch (type) {
        case normlab::DType::f32: return unpack_from<T>(to, (const float*)from, width, offset);
        case normlab::DType::f64: return unpack_from<T>(to, (const double*)from, width, offset);
        case normlab::DType::bf16: return unpack_from<T>(to, (const bf16*)from, width, offset);
        case normlab::DType::f16: return unpack_from<T>(to, (const f16*)from, width, offset);
    }
}

// The same as plain float64 in element order.
template <class P> void widen_from(double* to, const P* from, int64_t width, double offset) {
    for (int64_t j = 0; j < width; ++j) to[j] = get(from, j) + offset;
}
inline void widen(double* to, normlab::DType type, const void* from, int64_t width, double missing, double offset) {
    if (!from) {
        for (int64_t j = 0; j < width; ++j) to[j] = missing;
        return;
    }
    switch (type) {
        case normlab::DType::f32: return widen_from(to, (const float*)from, width, offset);
        case normlab::DType::f64: return widen_from(to, (const double*)from, width, offset);
        case normlab::DType::bf16: return widen_from(to, (const bf16*)from, width, offset);
        case normlab::DType::f16: return widen_from(to, (const f16*)from, width, offset);
    }
}

template <class P> void narrow_to(P* to, const double* from, int64_t width) {
    for (int64_t j = 0; j < width; ++j) put(to, j, from[j]);
}
inline void narrow(normlab::DType type, void* to, const double* from, int64_t width) {
    switch (type) {
        case normlab::DType::f32: return narrow_to((float*)to, from, width);
        case normlab::DType::f64: return narrow_to((double*)to, from, width);
        case normlab::DType::bf16: return narrow_to((bf16*)to, from, width);
        case normlab::DType::f16: return narrow_to((f16*)to, from, width);
    }
}

// Call f(j, whole) on every whole block and f(j, count) on the rest; f takes the second argument as `auto`.
struct Whole {};
template <class C, class F> inline __attribute__((always_inline)) void each_block(int64_t width, F&& f) {
    constexpr int B = Block<C>::B;
    int64_t j = 0;
    for (; j + B <= width; j += B) f(j, Whole{});
    if (j < width) f(j, width - j);
}
// Call f(begin, length) on runs short enough to be summed in the compute type: 64 blocks each.
template <class C, class F> inline __attribute__((always_inline)) void each_run(int64_t width, F&& f) {
    constexpr int64_t run = 64 * Block<C>::B;
    for (int64_t j = 0; j < width; j += run) f(j, width - j < run ? width - j : run);
}
template <class T> inline __attribute__((always_inline)) Block<typename Compute<T>::type> load(const T* p, Whole) { return load(p); }
template <class T> inline __attribute__((always_inline)) void store(T* p, const Block<typename Compute<T>::type>& b, Whole) { store(p, b); }
template <class C> inline __attribute__((always_inline)) Block<C> keep(Block<C> a, const LaneMask<C>&, Whole) { return a; }
template <class C> inline __attribute__((always_inline)) Block<C> keep(Block<C> a, const LaneMask<C>& m, int64_t) { return keep(a, m); }

template <class T, class Count>
inline __attribute__((always_inline)) void Output::write(T* p, const Block<typename Compute<T>::type>& b, Count count) const {
    if constexpr (sizeof(Count) == sizeof(Whole)) {
        if (past_caches) return stream(p, b);
    }
    store(p, b, count);
}

}  // namespace
