// Mean and variance of a run of values: accurate for any mean and any scale.
//
// Sums of d = x - shift and d^2 for a shift close to the mean (within one standard deviation, or the pass is repeated).
// The rounding of x - shift is relative to the deviation, not to x, so a mean of 1e4 costs nothing. Sums that overflow
// or underflow the compute type send the run to a scaled float64 pass.
#pragma once
#include "pack.h"

namespace {

struct Moments {
    double mean, square;  // square: mean of (x - mean)^2, or of x^2 when not centered
};

template <class C> struct Range;
template <> struct Range<float> { static constexpr double big = 1e37, small = 1e-30; };
template <> struct Range<double> { static constexpr double big = 1e300, small = 1e-280; };

// Underflow of the squares only matters when no epsilon stands above it.
template <class C> inline bool trustworthy(double sum, double sum_of_squares, double n, double eps) {
    return sum > -Range<C>::big && sum < Range<C>::big && sum_of_squares < Range<C>::big &&
           (sum_of_squares >= Range<C>::small * n || eps > 1e6 * Range<C>::small);
}

template <class T> Moments scaled_moments(const T* x, int64_t n, bool centered) {
    double largest = 0;
    for (int64_t j = 0; j < n; ++j) {
        const double a = fabs(get(x, j));
        if (!(a <= largest)) largest = a;  // a NaN is taken, and kept
    }
    if (!(largest > 0 && largest < INFINITY)) {
        const double v = largest == 0 ? 0 : NAN;
        return {v, v};
    }
    const double unit = ldexp(1.0, -ilogb(largest));
    double mean = 0, square = 0, rest = 0;
    if (centered) {
        for (int64_t j = 0; j < n; ++j) mean += get(x, j) * unit;
        mean /= (double)n;
    }
    for (int64_t j = 0; j < n; ++j) {
        const double d = get(x, j) * unit - mean;
        rest += d;
        square += d * d;
    }
    if (centered) {
        rest /= (double)n;
        square = square / (double)n - rest * rest;
        mean += rest;
    } else {
        square /= (double)n;
    }
    return {mean / unit, square / unit / unit};
}

// A shift from the first values: near the mean for most data.
template <class T> inline __attribute__((always_inline)) typename Compute<T>::type first_guess(const T* x, int64_t n) {
    typedef typename Compute<T>::type C;
    return n < Block<C>::B ? horizontal(load(x, n)) / (C)n : horizontal(load(x)) * (C)(1.0 / Block<C>::B);
}

// Mean and variance from the sums around a shift; false when the shift lies more than a deviation from the mean.
inline __attribute__((always_inline)) bool settle(double shift, double sum, double s, double share, Moments& m) {
    const double rest = sum * share, apart = rest * rest, var = s * share - apart;
    m = {shift + rest, var > 0 ? var : 0};
    return apart <= var;
}

// `tail` is first<T>(n % block), which callers with many runs of one length compute once.
template <class T>
inline Moments moments(const T* x, int64_t n, bool centered, double eps, const LaneMask<typename Compute<T>::type>& tail) {
    typedef typename Compute<T>::type C;
    typedef Block<C> Bk;
    const double share = 1.0 / (double)n;
    if (!centered) {
        double s = 0;
        each_run<C>(n, [&](int64_t from, int64_t length) __attribute__((always_inline)) {
            Bk squares = Bk::all(0);
            each_block<C>(length, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk b = load(x + from + j, count);
                squares = squares + b * b;
            });
            s += (double)horizontal(squares);
        });
        if (!trustworthy<C>(0, s, (double)n, eps)) return scaled_moments(x, n, false);
        return {0, s * share};
    }
    // If the shift turns out to lie too far from the mean, the sums are taken again around a better one; for most data
    // one pass is enough.
    C shift = first_guess(x, n);
    for (int attempt = 0;; ++attempt) {
        double sum = 0, s = 0;
        each_run<C>(n, [&](int64_t from, int64_t length) __attribute__((always_inline)) {
            Bk total = Bk::all(0), squares = Bk::all(0);
            each_block<C>(length, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk d = keep(load(x + from + j, count) - shift, tail, count);
                total = total + d;
                squares = squares + d * d;
            });
            sum += (double)horizontal(total);
            s += (double)horizontal(squares);
        });
        if (!trustworthy<C>((double)shift, s, (double)n, eps)) return scaled_moments(x, n, true);
        Moments m;
        if (settle((double)shift, sum, s, share, m) || attempt == 2) return m;
        shift = (C)m.mean;
    }
}

// The same bits for R short runs at once (at most 64 blocks each, so that one sum in the compute type will do): a run's
// sum, its division and the check are a chain of waits, and the chains of several runs overlap.
template <int R, class T>
inline void moments_together(const T* const* x, int64_t n, bool centered, double eps,
                             const LaneMask<typename Compute<T>::type>& tail, Moments* found) {
    typedef typename Compute<T>::type C;
    typedef Block<C> Bk;
    const double share = 1.0 / (double)n;
    C shift[R];
    double sum[R], s[R];
    for (int i = 0; i < R; ++i) shift[i] = centered ? first_guess(x[i], n) : 0;
    for (int i = 0; i < R; ++i) {
        Bk total = Bk::all(0), squares = Bk::all(0);
        if (centered) {
            each_block<C>(n, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk d = keep(load(x[i] + j, count) - shift[i], tail, count);
                total = total + d;
                squares = squares + d * d;
            });
            sum[i] = (double)horizontal(total);
        } else {
            each_block<C>(n, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk b = load(x[i] + j, count);
                squares = squares + b * b;
            });
            sum[i] = 0;
        }
        s[i] = (double)horizontal(squares);
    }
    for (int i = 0; i < R; ++i) {
        const bool near = settle((double)shift[i], sum[i], s[i], share, found[i]);
        if (!(trustworthy<C>((double)shift[i], s[i], (double)n, eps) && near)) found[i] = moments(x[i], n, centered, eps, tail);
    }
}

}  // namespace
