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

// `tail` is first<T>(n % block), which callers with many runs of one length compute once.
template <class T>
inline Moments moments(const T* x, int64_t n, bool centered, double eps, const LaneMask<typename Compute<T>::type>& tail) {
    typedef typename Compute<T>::type C;
    typedef Block<C> Bk;
    if (!centered) {
        double s = 0;
        each_run<C>(n, [&](int64_t from, int64_t length) {
            Bk squares = Bk::all(0);
            each_block<C>(length, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk b = load(x + from + j, count);
                squares = squares + b * b;
            });
            s += (double)horizontal(squares);
        });
        if (!trustworthy<C>(0, s, (double)n, eps)) return scaled_moments(x, n, false);
        return {0, s / (double)n};
    }
    // The first values give a shift. If it turns out to lie too far from the mean, the sums are taken again around a
    // better one; for most data one pass is enough.
    C shift = n < Bk::B ? horizontal(load(x, n)) / (C)n : horizontal(load(x)) * (C)(1.0 / Bk::B);
    for (int attempt = 0;; ++attempt) {
        double sum = 0, s = 0;
        each_run<C>(n, [&](int64_t from, int64_t length) {
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
        const double rest = sum / (double)n;
        const double var = s / (double)n - rest * rest;
        if (rest * rest <= var || attempt == 2) return {(double)shift + rest, var > 0 ? var : 0};
        shift = (C)((double)shift + rest);
    }
}

}  // namespace
