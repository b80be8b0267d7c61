// Row norms: LayerNorm, RMSNorm, ScaleNorm over the last dimension, with the residual sum in front of them if asked.
//
// Forward reads x and writes y; backward reads grad and x and writes dx: a row is fetched once and worked on in cache.
// A row is computed from that row alone, always in the same order. Only the weight and bias gradients cross rows: they
// are summed as sums.h says.
//
//   xhat = (x - mean) * rstd            (rms, scale: mean = 0)
//   y    = gain * xhat + bias
//   dx   = rstd * (gain*grad - c1 - xhat * c2),  c1 = mean(gain*grad) (layer only),  c2 = p * sum(gain*grad*xhat)
//   p    = 1/width (layer), 1/partial on the values inside the statistic (rms), 1 or 0 when clamped (scale)
//
// This is what row_forward.cpp and row_backward.cpp share.
#pragma once
#include "moments.h"
#include "sums.h"

namespace normlab {
namespace NORMLAB_ISA {
namespace {

// Beyond this range (x - mean) * rstd is computed in float64.
inline bool extreme(double mean, double rstd) { return !(fabs(mean) < 1e18 && rstd > 1e-18 && rstd < 1e18); }

// Which elements dropout keeps: a hash of (seed, row, column), so that backward draws the same ones again.
// reference.keep_mask is the same function in torch.
inline uint32_t mix(uint32_t h) {
    h ^= h >> 16; h *= 0x7feb352du;
    h ^= h >> 15; h *= 0x846ca68bu;
    return h ^ (h >> 16);
}
inline uint32_t row_key(uint64_t seed, int64_t row) {
    const uint32_t low = mix((uint32_t)seed ^ mix((uint32_t)row));
    return mix(low ^ mix((uint32_t)(seed >> 32) ^ mix((uint32_t)((uint64_t)row >> 32) + 0x9e3779b9u)));
}

template <class T> struct Dropout {
    typedef typename Compute<T>::type C;
    uint32_t threshold;
    C scale;
    uint32_t lane[Block<C>::B];  // element offset of each slot

    explicit Dropout(double drop)
        : threshold((uint32_t)(drop * 4294967296.0)), scale(drop > 0 ? (C)(1.0 / (1.0 - drop)) : (C)1) {
        for (int j = 0; j < Block<C>::B; ++j) lane[slot<T>(j)] = (uint32_t)j;
    }
    // The factor on each element of the block: 0 or 1 / (1 - drop).
    inline Block<C> operator()(uint32_t key, int64_t j) const {
        C factor[Block<C>::B];
        for (int i = 0; i < Block<C>::B; ++i)
            factor[i] = mix(key + ((uint32_t)j + lane[i]) * 0x9e3779b9u) >= threshold ? scale : (C)0;
        return load_same(factor);
    }
};

template <class T> void unpack_gain(const RowNorm& a, typename Compute<T>::type* gain) {
    const double offset = a.offset_gain ? 1 : 0;
    if (a.mode == RowMode::scale)  // one number for all columns
        unpack<T>(gain, a.param_dtype, nullptr, a.width, a.weight ? get(a.param_dtype, a.weight, 0) + offset : 1, 0);
    else
        unpack<T>(gain, a.param_dtype, a.weight, a.width, 1, offset);
}

// Short rows are worked on four at a time. The reductions of one row are a chain of waits, those of four overlap; and
// gain, bias and the column sums are fetched once for all four. (Writes past the caches go row by row: they are slower
// when they alternate between rows.) Each row is still computed from itself alone.
constexpr int most_rows = 4;
inline int rows_together(int64_t width) { return width <= 512 ? most_rows : 1; }

// How far ahead of the current element to ask for memory: whole rows, at least 4 KiB. Without it the core reads while it
// takes the moments and writes while it applies them, but never both at once. 0 = not at all: what the core's own cache
// holds arrives in time, and asking costs a tenth.
template <class T> inline int64_t ahead(const RowNorm& a) {
    const int64_t bytes = a.width * (int64_t)sizeof(T);
    return a.rows * bytes <= (512 << 10) ? 0 : a.width * ((4096 + bytes - 1) / bytes);
}

// The two forms of a row: around its mean, or around zero. hi is the mean rounded, rest what that lost.
struct Centered { static constexpr bool centered = true; };
struct Plain { static constexpr bool centered = false; };
template <class Form, class C>
inline __attribute__((always_inline)) Block<C> standardized(Form form, const Block<C>& x, C hi, C r, C rest) {
    if (form.centered) return (x - hi) * r + rest;
    return x * r;
}

// The norm's input: x, or the stream the residual sum was written to.
template <class T> inline const T* input(const RowNorm& a, int64_t row) {
    return a.branch ? (const T*)a.stream + row * a.width : (const T*)a.x + row * a.x_stride;
}

template <class T> struct Group {
    int held;
    int64_t row[most_rows];
    const T* x[most_rows];
};

// f(group) for the real rows of [begin, end), a few at a time; rows of padding go to `blank`.
template <class T, class F, class Z> inline void row_groups(const RowNorm& a, int64_t begin, int64_t end, F&& f, Z&& blank) {
    const int together = rows_together(a.width);
    Group<T> group;
    group.held = 0;
    for (int64_t row = begin; row < end; ++row) {
        if (a.mask && !a.mask[row]) {
            blank(row);
        } else {
            group.row[group.held] = row;
            group.x[group.held++] = input<T>(a, row);
            if (group.held == together) { f(group); group.held = 0; }
        }
    }
    if (group.held) f(group);
}

}  // namespace

}  // namespace NORMLAB_ISA
}  // namespace normlab
