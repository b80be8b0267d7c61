// What the tests of the kernels share: every kernel of every instruction set this machine has, against plain loops in
// long double.
//
// Decisions:
// - No framework and no Python, so that AddressSanitizer and UBSan watch the kernels and nothing else (make sanitize).
// - Buffers are heap blocks of the exact size, in turn aligned and one element off. Outputs start as garbage; padding
//   and the gaps between strided rows hold NaN, so reading them shows.
// - A tolerance is derived, not chosen: the roundings behind a value (in the compute type) times the magnitudes that
//   enter it, plus half an ulp of the stored type. Each family prints how much of the former its worst error used.
// - Kernels keep no working memory between calls here, so that each piece is a heap block of its own and overruns show; one
//   test lets them.
// - Rounding to 16 bits is written again here from the definition of the formats, the dropout hash from reference.py.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../dispatch.h"

namespace normlab {

typedef long double real;

// ---- number formats -----------------------------------------------------------------------------------------------

struct Format { const char* name; int precision, min_exponent; size_t bytes; };
inline const Format formats[] = {{"f32", 24, -126, 4}, {"f64", 53, -1022, 8}, {"bf16", 8, -126, 2}, {"f16", 11, -14, 2}};
inline const Format& format(DType t) { return formats[(int)t]; }

inline real quantum(DType t, real v) {  // the distance between neighbours around v
    const int exponent = v == 0 ? format(t).min_exponent : ilogbl(v);
    return ldexpl(1, (exponent < format(t).min_exponent ? format(t).min_exponent : exponent) - format(t).precision + 1);
}
inline real rounded(DType t, real v) {
    return v == 0 || !std::isfinite(v) ? v : nearbyintl(v / quantum(t, v)) * quantum(t, v);
}

inline double decode(DType t, const void* p, int64_t i) {
    if (t == DType::f32) { float f; memcpy(&f, (const char*)p + 4 * i, 4); return f; }
    if (t == DType::f64) { double d; memcpy(&d, (const char*)p + 8 * i, 8); return d; }
    uint16_t h;
    memcpy(&h, (const char*)p + 2 * i, 2);
    const int bits = format(t).precision - 1, bias = 1 - format(t).min_exponent;
    const int exponent = (h & 0x7fff) >> bits, mantissa = h & ((1 << bits) - 1);
    const double sign = h & 0x8000 ? -1 : 1;
    if (exponent == 2 * bias + 1) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - bits);
    return sign * ldexp(mantissa + (1 << bits), exponent - bias - bits);
}
inline void encode(DType t, void* p, int64_t i, double v) {
    if (t == DType::f32) { const float f = (float)v; memcpy((char*)p + 4 * i, &f, 4); return; }
    if (t == DType::f64) { memcpy((char*)p + 8 * i, &v, 8); return; }
    const int bits = format(t).precision - 1, bias = 1 - format(t).min_exponent;
    uint16_t h;
    if (v != v) {
        h = (uint16_t)(((2 * bias + 1) << bits) | (1 << (bits - 1)));
    } else {
        const double a = fabs((double)rounded(t, v));
        const int exponent = a == 0 ? 0 : std::isinf(a) ? 2 * bias + 1 : ilogb(a) + bias;
        if (exponent > 2 * bias) h = (uint16_t)((2 * bias + 1) << bits);
        else if (exponent < 1) h = (uint16_t)ldexp(a, bits + bias - 1);
        else h = (uint16_t)((exponent << bits) + (int)ldexp(a, bits + bias - exponent) - (1 << bits));
        if (std::signbit(v)) h |= 0x8000;
    }
    memcpy((char*)p + 2 * i, &h, 2);
}

// ---- buffers and data ----------------------------------------------------------------------------------------------

struct Random {
    uint64_t state = 88172645463325252ull;
    double uniform(double lo, double hi) {
        state ^= state << 13; state ^= state >> 7; state ^= state << 17;
        return lo + (hi - lo) * (double)(state >> 11) * 0x1p-53;
    }
    bool chance(double p) { return uniform(0, 1) < p; }
};
inline Random randomness;

// An exact-size block, null when empty as torch's is. `lead` elements in front put it off alignment.
struct Buffer {
    DType type;
    int64_t size;
    char *block = nullptr, *data = nullptr;
    Buffer(DType t, int64_t n, int lead = 0) : type(t), size(n) {
        if (!n) return;
        const size_t bytes = format(t).bytes;
        block = (char*)malloc((size_t)(n + lead) * bytes);
        data = block + (size_t)lead * bytes;
        memset(block, 0xa5, (size_t)(n + lead) * bytes);
    }
    Buffer(const Buffer&) = delete;
    ~Buffer() { free(block); }
    double operator[](int64_t i) const { return decode(type, data, i); }
    void set(int64_t i, double v) { encode(type, data, i, v); }
    template <class F> void fill(F&& f) { for (int64_t i = 0; i < size; ++i) set(i, f(i)); }
    std::vector<double> values() const {
        std::vector<double> all((size_t)size);
        for (int64_t i = 0; i < size; ++i) all[(size_t)i] = (*this)[i];
        return all;
    }
    bool same(const Buffer& o) const {
        return size == o.size && (!size || !memcmp(data, o.data, (size_t)size * format(type).bytes));
    }
    double* doubles() { return (double*)data; }
};

// ---- counting ------------------------------------------------------------------------------------------------------

struct Family { const char* name; long passed, failed; double worst; };
inline Family families[] = {{"row norms", 0, 0, 0}, {"residual row norms", 0, 0, 0}, {"column norms", 0, 0, 0},
                     {"plane norms", 0, 0, 0}, {"pointwise", 0, 0, 0}, {"special values", 0, 0, 0},
                     {"working memory", 0, 0, 0}};
enum { row_family, residual_family, column_family, plane_family, pointwise_family, special_family, memory_family };
inline Family* family = families;
inline std::string context;

inline void verdict(bool ok, const std::string& what) {
    (ok ? family->passed : family->failed)++;
    if (!ok && family->failed <= 8) printf("FAILED %s: %s: %s\n", family->name, context.c_str(), what.c_str());
}

// What a buffer should hold: each value, and how far the compute type may be from it before the final rounding.
struct Expected {
    std::vector<real> value, slack;
    explicit Expected(int64_t n) : value((size_t)n, 0), slack((size_t)n, 0) {}
    void set(int64_t i, real v, real s) { value[(size_t)i] = v; slack[(size_t)i] = s; }
};
inline void compare(const char* what, const Buffer& got, const Expected& want) {
    if (got.size != (int64_t)want.value.size()) return verdict(false, std::string(what) + " has the wrong size");
    if (!got.size) return;
    for (int64_t i = 0; i < got.size; ++i) {
        const real v = want.value[(size_t)i], slack = want.slack[(size_t)i];
        const real half = slack > 0 ? quantum(got.type, fabsl(v) + slack) / 2 : 0, error = fabsl(got[i] - v),
            allowed = slack + half;
        if (!(error <= allowed)) {
            char text[200];
            snprintf(text, sizeof text, "%s[%ld] is %.17g, not %.17Lg; off by %.3Lg, allowed %.3Lg", what, (long)i,
                     got[i], v, error, allowed);
            return verdict(false, text);
        }
        const double used = slack > 0 ? (double)((error - half) / slack) : 0;
        if (used > family->worst) family->worst = used;
    }
    verdict(true, what);
}
inline void same_bits(const char* what, const char* when, const Buffer& a, const Buffer& b) {
    if (a.size || b.size) verdict(a.same(b), std::string(what) + " has other bits " + when);
}

constexpr real double_unit = 0x1p-53L;
inline real unit_of(DType t) { return t == DType::f64 ? 0x1p-53L : 0x1p-24L; }  // of the compute type
// Additions one after another in a vectorised sum: the smallest block of any instruction set, at most 64 blocks before
// the sum goes on in float64, and the merge of lanes.
inline real additions(DType t, int64_t n) {
    const int64_t blocks = n / (t == DType::f64 ? 8 : 16);
    return (real)(blocks < 64 ? blocks : 64) + 6;
}

// In turn: buffers on and off alignment, parameters of the input's type and of float32.
struct Turn {
    unsigned count = 0;
    int lead() { return (int)(++count & 1); }
    DType param(DType t) const { return count & 2 ? t : DType::f32; }
};

void test_rows(const Isa& isa, DType t, Turn& turn, int64_t rows, int64_t width);
void test_pointwise(const Isa& isa, DType t, Turn& turn, int64_t rows, int64_t width);
void test_columns(const Isa& isa, DType t, Turn& turn, int64_t rows, int64_t width);
void test_no_samples(const Isa& isa, DType t);
void test_special_values(const Isa& isa, DType t);
void test_parts(const Isa& isa, DType t);
void test_wide_sums(const Isa& isa);
void test_refused_memory(const Isa& isa);
void count_allocations();

}  // namespace normlab
