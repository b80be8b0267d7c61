// Every kernel of every instruction set this machine has, against plain loops in long double.
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
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "../dispatch.h"

using namespace normlab;

namespace {

typedef long double real;

// ---- number formats -----------------------------------------------------------------------------------------------

struct Format { const char* name; int precision, min_exponent; size_t bytes; };
const Format formats[] = {{"f32", 24, -126, 4}, {"f64", 53, -1022, 8}, {"bf16", 8, -126, 2}, {"f16", 11, -14, 2}};
const Format& format(DType t) { return formats[(int)t]; }

real quantum(DType t, real v) {  // the distance between neighbours around v
    const int exponent = v == 0 ? format(t).min_exponent : ilogbl(v);
    return ldexpl(1, (exponent < format(t).min_exponent ? format(t).min_exponent : exponent) - format(t).precision + 1);
}
real rounded(DType t, real v) {
    return v == 0 || !std::isfinite(v) ? v : nearbyintl(v / quantum(t, v)) * quantum(t, v);
}

double decode(DType t, const void* p, int64_t i) {
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
void encode(DType t, void* p, int64_t i, double v) {
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
} randomness;

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
Family families[] = {{"row norms", 0, 0, 0}, {"residual row norms", 0, 0, 0}, {"column norms", 0, 0, 0},
                     {"plane norms", 0, 0, 0}, {"pointwise", 0, 0, 0}, {"special values", 0, 0, 0},
                     {"working memory", 0, 0, 0}};
enum { row_family, residual_family, column_family, plane_family, pointwise_family, special_family, memory_family };
Family* family = families;
std::string context;

void verdict(bool ok, const std::string& what) {
    (ok ? family->passed : family->failed)++;
    if (!ok && family->failed <= 8) printf("FAILED %s: %s: %s\n", family->name, context.c_str(), what.c_str());
}

// What a buffer should hold: each value, and how far the compute type may be from it before the final rounding.
struct Expected {
    std::vector<real> value, slack;
    explicit Expected(int64_t n) : value((size_t)n, 0), slack((size_t)n, 0) {}
    void set(int64_t i, real v, real s) { value[(size_t)i] = v; slack[(size_t)i] = s; }
};
void compare(const char* what, const Buffer& got, const Expected& want) {
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
void same_bits(const char* what, const char* when, const Buffer& a, const Buffer& b) {
    if (a.size || b.size) verdict(a.same(b), std::string(what) + " has other bits " + when);
}

constexpr real double_unit = 0x1p-53L;
real unit_of(DType t) { return t == DType::f64 ? 0x1p-53L : 0x1p-24L; }  // of the compute type
// Additions one after another in a vectorised sum: the smallest block of any instruction set, at most 64 blocks before
// the sum goes on in float64, and the merge of lanes.
real additions(DType t, int64_t n) {
    const int64_t blocks = n / (t == DType::f64 ? 8 : 16);
    return (real)(blocks < 64 ? blocks : 64) + 6;
}

// ---- row norms -----------------------------------------------------------------------------------------------------

struct RowCase {
    RowMode mode;
    bool weight, bias, offset, round_first, masked, frozen;  // frozen: no gradients of the parameters wanted
    int64_t gap;                                             // x_stride - width
    double partial;                                          // share of the width in the statistic
    double eps, center, scale;
    bool residual, grad_stream;
    double alpha, drop;
};

uint32_t mix(uint32_t h) {
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    return h ^ (h >> 16);
}
bool kept(uint64_t seed, int64_t row, int64_t column, double drop) {
    const uint32_t low = mix((uint32_t)seed ^ mix((uint32_t)row));
    const uint32_t key = mix(low ^ mix((uint32_t)(seed >> 32) ^ mix((uint32_t)(row >> 32) + 0x9e3779b9u)));
    return mix(key + (uint32_t)column * 0x9e3779b9u) >= (uint32_t)(drop * 4294967296.0);
}
constexpr uint64_t seed = 0x1234567890abcdefull;

struct RowOutputs {
    Buffer y, stream, mean, rstd, dx, dbranch, dweight, dbias;
    RowOutputs(const RowCase& c, DType t, DType param, int64_t rows, int64_t width, int lead)
        : y(t, rows * width, lead), stream(t, c.residual ? rows * width : 0, lead),
          mean(DType::f64, c.mode == RowMode::layer ? rows : 0), rstd(DType::f64, rows), dx(t, rows * width, lead),
          dbranch(t, c.alpha != 1 || c.drop > 0 ? rows * width : 0, lead),
          dweight(param, c.weight && !c.frozen ? (c.mode == RowMode::scale ? 1 : width) : 0, lead),
          dbias(param, c.bias && !c.frozen ? width : 0, lead) {}
};

void test_rows(const Isa& isa, const RowCase& c, DType t, DType param, int64_t rows, int64_t width, int lead) {
    char text[240];
    snprintf(text, sizeof text,
             "%s %s/%s mode %d %ldx%ld+%ld weight %d bias %d offset %d round_first %d mask %d alpha %g drop %g "
             "scale %g",
             isa.name, format(t).name, format(param).name, (int)c.mode, (long)rows, (long)width, (long)c.gap, c.weight,
             c.bias, c.offset, c.round_first, c.masked, c.alpha, c.drop, c.scale);
    context = text;
    family = families + (c.residual ? residual_family : row_family);
    const int64_t stride = width + c.gap;
    const int64_t partial = c.mode == RowMode::rms ? (int64_t)ceil(c.partial * (double)width) : width;
    const double scale = t == DType::f16 ? 1 : c.scale;  // 1e30 does not fit; backward would not either

    std::vector<uint8_t> mask((size_t)(c.masked ? rows : 0));
    for (uint8_t& m : mask) m = randomness.chance(0.6);
    auto real_row = [&](int64_t i) { return !c.masked || mask[(size_t)(i / width)]; };
    Buffer x(t, rows ? (rows - 1) * stride + width : 0, lead), branch(t, c.residual ? rows * width : 0, lead);
    Buffer weight(param, c.weight ? (c.mode == RowMode::scale ? 1 : width) : 0, lead);
    Buffer bias(param, c.bias ? width : 0, lead);
    Buffer grad(t, rows * width, lead), grad_stream(t, c.grad_stream ? rows * width : 0, lead);
    x.fill([&](int64_t i) {
        const bool used = i % stride < width && (!c.masked || mask[(size_t)(i / stride)]);
        return used ? scale * (c.center + randomness.uniform(-2, 2)) : NAN;
    });
    branch.fill([&](int64_t i) { return real_row(i) ? scale * randomness.uniform(-2, 2) : NAN; });
    grad.fill([&](int64_t i) { return real_row(i) ? randomness.uniform(-1, 1) : NAN; });
    grad_stream.fill([&](int64_t i) { return real_row(i) ? randomness.uniform(-1, 1) : NAN; });
    weight.fill([&](int64_t) { return randomness.uniform(-1.5, 1.5); });
    bias.fill([&](int64_t) { return randomness.uniform(-1, 1); });

    auto run = [&](RowOutputs& o, int threads) {
        RowNorm a{};
        a.rows = rows; a.width = width; a.x_stride = stride; a.partial = partial;
        a.dtype = t; a.param_dtype = param; a.mode = c.mode; a.eps = c.eps;
        a.offset_gain = c.offset; a.round_before_gain = c.round_first; a.threads = threads;
        a.mask = c.masked ? mask.data() : nullptr;
        a.weight = weight.data; a.bias = bias.data; a.x = x.data;
        a.mean = o.mean.doubles(); a.rstd = o.rstd.doubles();
        a.alpha = c.alpha; a.drop = c.drop; a.seed = seed;
        a.branch = branch.data; a.stream = o.stream.data; a.y = o.y.data;
        isa.table->row_forward(a);
        if (c.residual) a.x = a.branch = o.stream.data;  // backward has the stream only
        a.bias = nullptr; a.y = nullptr;
        a.grad = grad.data; a.grad_stream = grad_stream.data;
        a.dx = o.dx.data; a.dbranch = o.dbranch.data; a.dweight = o.dweight.data; a.dbias = o.dbias.data;
        isa.table->row_backward(a);
    };
    RowOutputs o(c, t, param, rows, width, lead), two(c, t, param, rows, width, lead);
    run(o, 1);
    run(two, 2);
    same_bits("y", "with 2 threads", o.y, two.y);
    same_bits("stream", "with 2 threads", o.stream, two.stream);
    same_bits("dx", "with 2 threads", o.dx, two.dx);
    same_bits("dbranch", "with 2 threads", o.dbranch, two.dbranch);
    same_bits("dweight", "with 2 threads", o.dweight, two.dweight);
    same_bits("dbias", "with 2 threads", o.dbias, two.dbias);

    const real u = unit_of(t), sum_k = additions(t, width), k = additions(t, partial) / 2 + 6,
        one = c.mode == RowMode::layer;
    const bool shared_gain = c.mode == RowMode::scale, really_rounds = c.round_first && format(t).bytes == 2;
    Expected y(o.y.size), stream(o.stream.size), mean(o.mean.size), rstd(o.rstd.size), dx(o.dx.size),
        dbranch(o.dbranch.size);
    Expected dweight(o.dweight.size), dbias(o.dbias.size);
    std::vector<real> v((size_t)width), xhat((size_t)width), gain((size_t)width), grown((size_t)width);
    for (int64_t j = 0; j < width; ++j)
        gain[(size_t)j] = (c.weight ? weight[shared_gain ? 0 : j] : 1) + (c.weight && c.offset ? 1 : 0);
    for (int64_t r = 0; r < rows; ++r) {
        if (c.masked && !mask[(size_t)r]) continue;  // zeros are expected
        for (int64_t j = 0; j < width; ++j) {
            const int64_t i = r * width + j;
            real value = x[r * stride + j];
            if (c.residual) {
                const real b = kept(seed, r, j, c.drop) ? branch[i] / (1 - (real)c.drop) : 0;
                stream.set(i, c.alpha * value + b, 3 * u * (fabsl(c.alpha * value) + fabsl(b)));
                value = o.stream[i];  // the norm's input is the sum as stored
            }
            v[(size_t)j] = value;
        }
        real center = 0, square = 0;
        if (c.mode == RowMode::layer) {
            for (real value : v) center += value;
            center /= (real)width;
        }
        for (int64_t j = 0; j < partial; ++j) square += (v[(size_t)j] - center) * (v[(size_t)j] - center);
        const real length = sqrtl(square), deviation = sqrtl(square / (real)partial);
        const bool clamped = c.mode == RowMode::scale && length <= c.eps;
        const real inverse = c.mode == RowMode::scale ? 1 / (clamped ? (real)c.eps : length)
                                                      : 1 / sqrtl(square / (real)partial + c.eps);
        const real drift = 2 * double_unit * fabsl(center);  // a mean is kept in float64
        if (o.mean.size) mean.set(r, center, 2 * sum_k * u * deviation + drift);
        rstd.set(r, inverse, k * u * inverse);

        const real p = c.mode == RowMode::scale ? (clamped ? 0 : 1) : 1 / (real)partial;
        real s1 = 0, s2 = 0, a1 = 0, a2 = 0;  // a: the same sums of magnitudes
        for (int64_t j = 0; j < width; ++j) {
            const int64_t i = r * width + j;
            const size_t at = (size_t)j;
            xhat[at] = (v[at] - center) * inverse;
            grown[at] = k * u * (fabsl(xhat[at]) + one) + drift * inverse;  // how far the computed xhat may be off
            real seen = xhat[at], doubt = grown[at];
            if (really_rounds) {
                seen = rounded(t, xhat[at]);
                doubt = rounded(t, xhat[at] + grown[at]) - rounded(t, xhat[at] - grown[at]);  // 0 unless close to a tie
            }
            const real b = c.bias ? bias[j] : 0;
            y.set(i, seen * gain[at] + b, (doubt + 3 * u * fabsl(seen)) * fabsl(gain[at]) + u * fabsl(b) + u * u);
            const real g = grad[i], weighted = g * gain[at];
            s1 += weighted; a1 += fabsl(weighted);
            s2 += weighted * xhat[at]; a2 += fabsl(weighted) * (fabsl(xhat[at]) + one);
            const real add_k = 64;  // rows are added one after another, then flushed to float64
            if (dweight.value.size()) {
                const size_t to = shared_gain ? 0 : at;
                dweight.value[to] += g * seen;
                dweight.slack[to] += fabsl(g) * (doubt + add_k * u * (fabsl(seen) + one));
            }
            if (dbias.value.size()) {
                dbias.value[at] += g;
                dbias.slack[at] += add_k * u * fabsl(g);
            }
        }
        const real c1 = c.mode == RowMode::layer ? s1 / (real)width : 0, c2 = p * s2;
        for (int64_t j = 0; j < width; ++j) {
            const int64_t i = r * width + j;
            const size_t at = (size_t)j;
            const bool inside = j < partial;
            const real weighted = grad[i] * gain[at];
            real d = inverse * (weighted - c1 - (inside ? xhat[at] * c2 : 0));
            real slack = (k + sum_k) * u * inverse *
                         (fabsl(weighted) + one * a1 / (real)width + (inside ? (fabsl(xhat[at]) + one) * p * a2 : 0)) +
                         drift * inverse * inverse * (fabsl(c2) + fabsl(xhat[at]) * a1 / (real)width) + u * u * inverse;
            if (c.grad_stream) { d += grad_stream[i]; slack += u * fabsl(d); }
            dx.set(i, d * c.alpha, (slack + 2 * u * fabsl(d)) * fabs(c.alpha));
            if (o.dbranch.size) {
                const real factor = kept(seed, r, j, c.drop) ? 1 / (1 - (real)c.drop) : 0;
                dbranch.set(i, d * factor, factor * (slack + 2 * u * fabsl(d)));
            }
        }
    }
    compare("y", o.y, y);
    compare("stream", o.stream, stream);
    compare("mean", o.mean, mean);
    compare("rstd", o.rstd, rstd);
    compare("dx", o.dx, dx);
    compare("dbranch", o.dbranch, dbranch);
    compare("dweight", o.dweight, dweight);
    compare("dbias", o.dbias, dbias);

    // a row alone has the same bits as in its batch
    if (rows > 1 && !c.residual && (!c.masked || mask[(size_t)rows - 1])) {
        RowNorm a{};
        Buffer alone(t, width, lead), alone_mean(DType::f64, 1), alone_rstd(DType::f64, 1);
        a.rows = 1; a.width = width; a.x_stride = stride; a.partial = partial; a.dtype = t; a.param_dtype = param;
        a.mode = c.mode; a.eps = c.eps; a.offset_gain = c.offset; a.round_before_gain = c.round_first; a.threads = 1;
        a.weight = weight.data; a.bias = bias.data; a.alpha = 1;
        a.x = x.data + (size_t)((rows - 1) * stride) * format(t).bytes;
        a.mean = c.mode == RowMode::layer ? alone_mean.doubles() : nullptr; a.rstd = alone_rstd.doubles();
        a.y = alone.data;
        isa.table->row_forward(a);
        const size_t bytes = (size_t)width * format(t).bytes;
        verdict(!memcmp(alone.data, o.y.data + (size_t)(rows - 1) * bytes, bytes), "the last row alone has other bits");
    }
}

const RowCase row_cases[] = {
    // mode            weight bias  offset round mask  frozen gap partial eps  center scale  residual
    {RowMode::layer,   true,  true,  false, false, false, false, 0, 1,    1e-5, 0.5,  1,     false, false, 1, 0},
    {RowMode::layer,   true,  true,  false, true,  true,  false, 5, 1,    1e-5, -3,   1,     false, false, 1, 0},
    {RowMode::layer,   true,  false, true,  false, true,  false, 0, 1,    1e-2, 1,    1,     false, false, 1, 0},
    {RowMode::layer,   false, false, false, false, false, false, 3, 1,    1e-5, 1e4,  1,     false, false, 1, 0},
    {RowMode::layer,   false, true,  false, false, false, false, 0, 1,    1e-5, 0.5,  1e30,  false, false, 1, 0},
    {RowMode::layer,   true,  true,  false, false, false, true,  0, 1,    1e-5, 0.5,  1,     false, false, 1, 0},
    {RowMode::rms,     true,  false, false, false, false, false, 0, 1,    1e-6, 0.5,  1,     false, false, 1, 0},
    {RowMode::rms,     true,  true,  true,  true,  true,  false, 7, 1,    1e-2, 0,    1,     false, false, 1, 0},
    {RowMode::rms,     true,  false, false, false, true,  false, 0, 0.3,  1e-6, 1,    1,     false, false, 1, 0},
    {RowMode::rms,     false, false, false, true,  false, false, 2, 0.6,  1e-6, 0.5,  1,     false, false, 1, 0},
    {RowMode::rms,     true,  false, true,  false, false, false, 0, 1,    0,    0.5,  1e-30, false, false, 1, 0},
    {RowMode::rms,     true,  false, false, false, false, true,  1, 1,    1e-6, 0.5,  1e30,  false, false, 1, 0},
    {RowMode::scale,   true,  false, false, false, false, false, 0, 1,    1e-5, 0.5,  1,     false, false, 1, 0},
    {RowMode::scale,   true,  false, false, false, true,  false, 3, 1,    2.5,  0,    1,     false, false, 1, 0},
    {RowMode::scale,   false, false, false, false, true,  false, 0, 1,    1e-5, 0.5,  1e30,  false, false, 1, 0},
    {RowMode::scale,   true,  false, false, true,  false, true,  0, 1,    1e4,  0.5,  1,     false, false, 1, 0},
    {RowMode::layer,   true,  true,  false, false, false, false, 0, 1,    1e-5, 0.5,  1,     true,  false, 1,   0},
    {RowMode::layer,   true,  true,  false, false, true,  false, 3, 1,    1e-5, 0.5,  1,     true,  true,  1,   0},
    {RowMode::layer,   true,  false, true,  true,  true,  false, 0, 1,    1e-2, -1,   1,     true,  true,  2.5, 0},
    {RowMode::layer,   false, true,  false, false, false, false, 4, 1,    1e-5, 0.5,  1,     true,  false, 0.3, 0.3},
    {RowMode::rms,     true,  false, true,  true,  false, false, 0, 1,    1e-6, 0.5,  1,     true,  false, 1,   0.45},
    {RowMode::rms,     true,  true,  false, false, true,  false, 1, 1,    1e-6, 0.5,  1,     true,  true,  1.7, 0.1},
    {RowMode::rms,     true,  false, false, false, false, true,  0, 1,    1e-6, 0.5,  1e30,  true,  true,  1.5, 0.2},
    {RowMode::rms,     false, false, false, false, true,  false, 0, 1,    1e-2, 0.5,  1,     true,  false, 1,   0},
};

// ---- column norms --------------------------------------------------------------------------------------------------

enum Mask { no_mask, random_mask, harsh_mask };  // harsh: segment 0 has no real row, the last segment a single one
enum Groups { each_channel, some, whole };
struct ColumnCase {
    bool pooled;
    Groups groups;
    bool centered, given, weight, bias, offset, explicit_apply;
    Mask mask;
    double eps, center, scale;
};

bool keeps_running(const ColumnCase& c) { return c.pooled && c.groups == each_channel && c.centered && !c.given; }

struct ColumnOutputs {
    Buffer mean, var, count, y, sum_grad, sum_grad_xhat, dx, dweight, dbias, running_mean, running_var;
    ColumnOutputs(const ColumnCase& c, DType t, DType param, int64_t segments, int64_t rows, int64_t channels,
                  int64_t groups, int lead)
        : mean(DType::f64, (c.pooled ? 1 : segments) * groups), var(DType::f64, (c.pooled ? 1 : segments) * groups),
          count(DType::f64, c.pooled ? 1 : segments), y(t, segments * rows * channels, lead),
          sum_grad(DType::f64, (c.pooled ? 1 : segments) * channels),
          sum_grad_xhat(DType::f64, (c.pooled ? 1 : segments) * channels), dx(t, segments * rows * channels, lead),
          dweight(param, c.weight ? channels : 0, lead), dbias(param, c.bias ? channels : 0, lead),
          running_mean(param, keeps_running(c) ? channels : 0, lead),
          running_var(param, keeps_running(c) ? channels : 0, lead) {}
};

int64_t some_groups(int64_t channels) {
    for (int64_t g : {8, 3})
        if (channels % g == 0) return g;
    return 1;
}

void test_columns(const Isa& isa, const ColumnCase& c, bool planes, DType t, DType param, int64_t segments,
                  int64_t rows, int64_t channels, int lead) {
    const int64_t groups = c.groups == each_channel ? channels : c.groups == whole ? 1 : some_groups(channels);
    const int64_t width = channels / groups;
    char text[240];
    snprintf(text, sizeof text,
             "%s %s/%s %ldx%ldx%ld groups %ld pooled %d centered %d given %d weight %d bias %d offset %d explicit %d "
             "mask %d center %g scale %g",
             isa.name, format(t).name, format(param).name, (long)segments, (long)rows, (long)channels, (long)groups,
             c.pooled, c.centered, c.given, c.weight, c.bias, c.offset, c.explicit_apply, (int)c.mask, c.center,
             c.scale);
    context = text;
    family = families + (planes ? plane_family : column_family);
    const double scale = t == DType::f16 ? 1 : c.scale;
    const int64_t sets = c.pooled ? 1 : segments, size = segments * rows * channels;
    auto at = [&](int64_t s, int64_t r, int64_t ch) {
        return planes ? (s * channels + ch) * rows + r : (s * rows + r) * channels + ch;
    };

    std::vector<uint8_t> mask((size_t)(c.mask ? segments * rows : 0));
    for (int64_t i = 0; i < (int64_t)mask.size(); ++i) {
        const int64_t s = i / rows;
        const bool lone = c.mask == harsh_mask && s == segments - 1;
        mask[(size_t)i] = lone ? i % rows == rows / 2 : c.mask == harsh_mask && s == 0 ? 0 : randomness.chance(0.6);
    }
    auto is_real = [&](int64_t s, int64_t r) { return !c.mask || mask[(size_t)(s * rows + r)]; };
    Buffer x(t, size, lead), grad(t, size, lead);
    Buffer weight(param, c.weight ? channels : 0, lead), bias(param, c.bias ? channels : 0, lead);
    for (int64_t s = 0; s < segments; ++s)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t ch = 0; ch < channels; ++ch) {
                const double center = c.center + 0.2 * (double)(ch % 5);
                x.set(at(s, r, ch), is_real(s, r) ? scale * (center + randomness.uniform(-2, 2)) : NAN);
                grad.set(at(s, r, ch), is_real(s, r) ? randomness.uniform(-1, 1) : NAN);
            }
    weight.fill([&](int64_t) { return randomness.uniform(-1.5, 1.5); });
    bias.fill([&](int64_t) { return randomness.uniform(-1, 1); });
    std::vector<double> given_mean((size_t)(sets * groups)), given_var((size_t)(sets * groups)),
        coefficients((size_t)(3 * sets * channels));
    for (double& m : given_mean) m = c.centered ? scale * (c.center + randomness.uniform(-1, 1)) : 0;
    for (double& v : given_var) v = scale * scale * randomness.uniform(0.2, 3);
    for (double& k : coefficients) k = randomness.uniform(-1, 1);
    const double factor = 0.3;
    auto old_mean = [&](int64_t ch) { return scale * (0.25 + (double)(ch % 7)); };
    auto old_var = [&](int64_t ch) { return 1.5 + (double)(ch % 3); };

    auto describe = [&](ColumnOutputs& o, int threads) {
        ColumnNorm a{};
        a.segments = segments; a.rows = rows; a.channels = channels; a.groups = groups;
        a.planes = planes; a.pooled = c.pooled; a.centered = c.centered; a.given = c.given;
        a.dtype = t; a.param_dtype = param; a.eps = c.eps; a.offset_gain = c.offset; a.threads = threads;
        a.mask = c.mask ? mask.data() : nullptr;
        a.weight = weight.data; a.bias = bias.data; a.x = x.data;
        a.mean = o.mean.doubles(); a.var = o.var.doubles(); a.count = o.count.doubles(); a.y = o.y.data;
        if (c.given) {
            for (int64_t i = 0; i < o.mean.size; ++i) {
                o.mean.set(i, given_mean[(size_t)i]);
                o.var.set(i, given_var[(size_t)i]);
            }
            for (int64_t i = 0; i < sets; ++i) o.count.set(i, 0);
        }
        return a;
    };
    auto backward_fields = [&](ColumnNorm& a, ColumnOutputs& o) {
        a.y = nullptr; a.bias = nullptr;
        a.grad = grad.data; a.sum_grad = o.sum_grad.doubles(); a.sum_grad_xhat = o.sum_grad_xhat.doubles();
        if (c.explicit_apply) {
            a.direct = coefficients.data();
            a.along = a.direct + sets * channels;
            a.offset = a.along + sets * channels;
        }
        a.dx = o.dx.data; a.dweight = o.dweight.data; a.dbias = o.dbias.data;
    };
    ColumnOutputs o(c, t, param, segments, rows, channels, groups, lead);
    ColumnOutputs two(c, t, param, segments, rows, channels, groups, lead);
    for (ColumnOutputs* out : {&o, &two}) {  // in one go; `two` with two threads, keeping its sums to itself
        ColumnNorm a = describe(*out, out == &o ? 1 : 2);
        if (keeps_running(c)) {
            out->running_mean.fill(old_mean);
            out->running_var.fill(old_var);
            a.running_mean = out->running_mean.data; a.running_var = out->running_var.data;
            a.running_dtype = param; a.factor = factor;
        }
        isa.table->column_forward(a);
        backward_fields(a, *out);
        if (out == &two) a.sum_grad = a.sum_grad_xhat = nullptr;
        isa.table->column_backward(a);
    }
    ColumnOutputs split(c, t, param, segments, rows, channels, groups, lead);  // stage by stage
    {
        ColumnNorm a = describe(split, 2);
        if (!c.given) {
            a.y = nullptr;
            isa.table->column_moments(a);
            a.y = split.y.data;
            a.given = true;
        }
        isa.table->column_forward(a);
        a.given = c.given;
        backward_fields(a, split);
        const ColumnNorm apply = a;
        a.dx = a.dweight = a.dbias = nullptr;
        isa.table->column_backward_sums(a);
        isa.table->column_backward_apply(apply);
    }
    same_bits("running_mean", "with 2 threads", o.running_mean, two.running_mean);
    same_bits("running_var", "with 2 threads", o.running_var, two.running_var);
    same_bits("sum_grad", "stage by stage", o.sum_grad, split.sum_grad);
    same_bits("sum_grad_xhat", "stage by stage", o.sum_grad_xhat, split.sum_grad_xhat);
    for (ColumnOutputs* other : {&two, &split}) {
        const char* when = other == &two ? "with 2 threads" : "stage by stage";
        same_bits("mean", when, o.mean, other->mean);
        same_bits("var", when, o.var, other->var);
        same_bits("count", when, o.count, other->count);
        same_bits("y", when, o.y, other->y);
        same_bits("dx", when, o.dx, other->dx);
        same_bits("dweight", when, o.dweight, other->dweight);
        same_bits("dbias", when, o.dbias, other->dbias);
    }

    // A run of 16 rows is summed about one of its rows (or the mean of four), which adds the square of that distance to
    // every term: on this data at most twice the square about the mean. 18 roundings of 3 times the sum, halved by the
    // root, make 27. Planes are summed about their mean and stay below that.
    const std::vector<double> x_at = x.values(), grad_at = grad.values(), weight_at = weight.values(),
        bias_at = bias.values();
    const real u = unit_of(t), k = c.given ? 4 : 27, one = c.centered;
    const real adds = planes ? additions(t, rows) : 18;
    // Each merge of two means rounds in float64.
    const real merges = (real)(rows * segments / 16 + width * segments + 4);
    auto drift = [&](real center) { return merges * double_unit * fabsl(center); };
    Expected mean(o.mean.size), var(o.var.size), count(o.count.size), y(size), sum_grad(o.sum_grad.size),
        sum_grad_xhat(o.sum_grad.size);
    Expected dx(size), dweight(o.dweight.size), dbias(o.dbias.size), running_mean(o.running_mean.size),
        running_var(o.running_var.size);
    for (int64_t set = 0; set < sets; ++set)
        for (int64_t g = 0; g < groups; ++g) {
            auto each = [&](auto&& f) {
                for (int64_t s = c.pooled ? 0 : set; s < (c.pooled ? segments : set + 1); ++s)
                    for (int64_t r = 0; r < rows; ++r)
                        for (int64_t ch = g * width; is_real(s, r) && ch < (g + 1) * width; ++ch) f(at(s, r, ch), ch);
            };
            real n = 0, center = 0, square = 0;
            each([&](int64_t i, int64_t) { n += 1; center += x_at[(size_t)i]; });
            center = n > 0 && c.centered ? center / n : 0;
            each([&](int64_t i, int64_t) { square += (x_at[(size_t)i] - center) * (x_at[(size_t)i] - center); });
            if (n > 0) square /= n;
            const int64_t stat = set * groups + g;
            if (c.given) {
                n = 0; center = given_mean[(size_t)stat]; square = given_var[(size_t)stat];
            } else {
                const real spread = sqrtl(square);
                mean.set(stat, center, c.centered ? k * u * spread + drift(center) : 0);
                var.set(stat, square, 2 * k * u * square + 2 * spread * drift(center));
            }
            const real lost = c.given ? 0 : drift(center);
            if (keeps_running(c)) {  // one cell says nothing about a variance: nothing moves
                const real first = rounded(param, old_mean(g)), second = rounded(param, old_var(g)),
                    moved = n < 2 ? 0 : factor;
                const real unbiased = n < 2 ? 0 : square * n / (n - 1);
                running_mean.set(g, first + moved * (center - first),
                                 2 * u * (fabsl(first) + fabsl(center)) + moved * mean.slack[(size_t)stat]);
                running_var.set(g, second + moved * (unbiased - second),
                                2 * u * second + moved * ((2 * k + 3) * u * unbiased + 4 * sqrtl(square) * lost));
            }
            count.value[(size_t)set] = n;
            const real inverse = 1 / sqrtl(square + c.eps);
            real c1 = 0, c2 = 0, a1 = 0, a2 = 0;
            each([&](int64_t i, int64_t ch) {
                const real gain = (c.weight ? weight_at[(size_t)ch] : 1) + (c.weight && c.offset ? 1 : 0),
                    b = c.bias ? bias_at[(size_t)ch] : 0;
                const real xhat = (x_at[(size_t)i] - center) * inverse, d = grad_at[(size_t)i],
                    doubt = k * u * (fabsl(xhat) + one) + lost * inverse * (1 + fabsl(xhat));
                y.set(i, xhat * gain + b, (doubt + 3 * u * fabsl(xhat)) * fabsl(gain) + u * fabsl(b) + u * u);
                const size_t to = (size_t)(set * channels + ch);
                sum_grad.value[to] += d;
                sum_grad.slack[to] += adds * u * fabsl(d);
                sum_grad_xhat.value[to] += d * xhat;
                sum_grad_xhat.slack[to] += fabsl(d) * (adds * u * (fabsl(xhat) + one) + doubt);
                c1 += gain * d; a1 += fabsl(gain * d);
                c2 += gain * d * xhat; a2 += fabsl(gain * d) * (fabsl(xhat) + one);
            });
            each([&](int64_t i, int64_t ch) {
                const real gain = (c.weight ? weight_at[(size_t)ch] : 1) + (c.weight && c.offset ? 1 : 0);
                const real xhat = (x_at[(size_t)i] - center) * inverse, d = grad_at[(size_t)i];
                if (c.explicit_apply) {
                    const int64_t to = set * channels + ch;
                    const real p = coefficients[(size_t)to] * d, q = coefficients[(size_t)(sets * channels + to)],
                        z = coefficients[(size_t)(2 * sets * channels + to)];
                    const real doubt = (k + 3) * u * (fabsl(xhat) + one) + lost * inverse * (1 + fabsl(xhat));
                    dx.set(i, p + q * xhat + z, u * (4 * fabsl(p) + 2 * fabsl(z)) + fabsl(q) * doubt);
                    return;
                }
                const real m1 = n > 0 && c.centered ? c1 / n : 0, m2 = n > 0 ? c2 / n : 0;
                const real shared = n > 0 ? (one * a1 + (fabsl(xhat) + one) * a2) / n : 0;
                const real by_mean = n > 0 ? fabsl(gain * d) + (1 + fabsl(xhat)) * (a1 + a2) / n : 0;
                dx.set(i, inverse * (gain * d - m1 - xhat * m2),
                       u * inverse * ((k + 4) * fabsl(gain * d) + (k + adds + 4) * shared) +
                           lost * inverse * inverse * by_mean + u * u * inverse);
            });
        }
    for (int64_t ch = 0; ch < channels; ++ch)
        for (int64_t set = 0; set < sets; ++set) {
            const size_t from = (size_t)(set * channels + ch), to = (size_t)ch;
            if (c.weight) {
                dweight.value[to] += sum_grad_xhat.value[from];
                dweight.slack[to] += sum_grad_xhat.slack[from];
            }
            if (c.bias) { dbias.value[to] += sum_grad.value[from]; dbias.slack[to] += sum_grad.slack[from]; }
        }
    if (!c.given) {
        compare("mean", o.mean, mean);
        compare("var", o.var, var);
    }
    compare("count", o.count, count);
    if (scale < 1e9) {  // a variance of 1e60 fits no float32
        compare("running_mean", o.running_mean, running_mean);
        compare("running_var", o.running_var, running_var);
    }
    compare("y", o.y, y);
    compare("sum_grad", o.sum_grad, sum_grad);
    compare("sum_grad_xhat", o.sum_grad_xhat, sum_grad_xhat);
    compare("dx", o.dx, dx);
    compare("dweight", o.dweight, dweight);
    compare("dbias", o.dbias, dbias);
}

const ColumnCase column_cases[] = {
    // pooled groups     centered given weight bias  offset explicit mask     eps   center scale
    {true,  each_channel, true,  false, true,  true,  false, false, no_mask,     1e-5, 0.5,  1},  // batch
    {true,  each_channel, true,  false, true,  true,  true,  false, random_mask, 1e-2, -3,   1},
    {true,  each_channel, true,  false, true,  false, false, false, harsh_mask,  1e-5, 1e4,  1},
    {true,  each_channel, true,  false, false, true,  false, false, no_mask,     1e-5, 0.5,  1e30},
    {true,  each_channel, true,  true,  true,  true,  false, false, random_mask, 1e-5, 0.5,  1},  // batch, evaluation
    {true,  each_channel, true,  false, true,  true,  false, true,  random_mask, 1e-5, 0.5,  1},  // synced
    {true,  each_channel, false, false, true,  false, false, false, no_mask,     1e-5, 0.5,  1},  // power, per batch
    {true,  each_channel, false, true,  true,  true,  false, true,  harsh_mask,  1e-5, 0.5,  1},  // power, running
    {true,  some,         true,  false, true,  true,  false, false, harsh_mask,  1e-5, 0.5,  1},
    {false, each_channel, true,  false, true,  true,  false, false, no_mask,     1e-5, 0.5,  1},  // instance
    {false, each_channel, true,  false, true,  true,  true,  false, harsh_mask,  1e-2, 2,    1},
    {false, each_channel, false, false, false, false, false, false, random_mask, 1e-5, 0.5,  1},
    {false, some,         true,  false, true,  true,  false, false, no_mask,     1e-5, 0.5,  1},  // group
    {false, some,         true,  false, true,  true,  true,  false, harsh_mask,  1e-5, 0.5,  1},
    {false, whole,        true,  false, true,  false, false, false, random_mask, 1e-2, 10,   1},
    {false, whole,        true,  true,  false, true,  false, true,  random_mask, 1e-5, 0.5,  1},
};

// ---- pointwise -----------------------------------------------------------------------------------------------------

struct PointwiseCase { bool erf, shift, weight, bias, masked, frozen; double alpha; };

struct PointwiseOutputs {
    Buffer y, dx, dalpha, dshift, dweight, dbias;
    PointwiseOutputs(const PointwiseCase& c, DType t, DType param, int64_t size, int64_t width, int lead)
        : y(t, size, lead), dx(t, size, lead), dalpha(param, c.frozen ? 0 : 1, lead),
          dshift(param, c.shift && !c.frozen ? 1 : 0, lead), dweight(param, c.weight && !c.frozen ? width : 0, lead),
          dbias(param, c.bias && !c.frozen ? width : 0, lead) {}
};

void test_pointwise(const Isa& isa, const PointwiseCase& c, DType t, DType param, int64_t rows, int64_t width,
                    int lead) {
    char text[200];
    snprintf(text, sizeof text, "%s %s/%s %s %ldx%ld shift %d weight %d bias %d mask %d alpha %g", isa.name,
             format(t).name, format(param).name, c.erf ? "erf" : "tanh", (long)rows, (long)width, c.shift, c.weight,
             c.bias, c.masked, c.alpha);
    context = text;
    family = families + pointwise_family;
    std::vector<uint8_t> mask((size_t)(c.masked ? rows : 0));
    for (uint8_t& m : mask) m = randomness.chance(0.6);
    auto real_row = [&](int64_t i) { return !c.masked || mask[(size_t)(i / width)]; };
    Buffer x(t, rows * width, lead), grad(t, rows * width, lead), alpha(param, 1, lead), shift(param, c.shift, lead);
    Buffer weight(param, c.weight ? width : 0, lead), bias(param, c.bias ? width : 0, lead);
    alpha.set(0, c.alpha);
    shift.fill([&](int64_t) { return -0.37; });
    // Mostly the bend of the curve, some of the flat ends, some tiny values whose relative error must stay small.
    x.fill([&](int64_t i) {
        const double wide = randomness.chance(0.1) ? 1e3 : randomness.chance(0.1) ? 1e-3 : 3;
        return real_row(i) ? randomness.uniform(-wide, wide) / c.alpha : NAN;
    });
    grad.fill([&](int64_t i) { return real_row(i) ? randomness.uniform(-1, 1) : NAN; });
    weight.fill([&](int64_t) { return randomness.uniform(-1.5, 1.5); });
    bias.fill([&](int64_t) { return randomness.uniform(-1, 1); });

    auto run = [&](PointwiseOutputs& o, int threads) {
        Pointwise a{};
        a.rows = rows; a.width = width; a.dtype = t; a.param_dtype = param; a.erf = c.erf; a.threads = threads;
        a.mask = c.masked ? mask.data() : nullptr;
        a.alpha = alpha.data; a.shift = shift.data; a.weight = weight.data; a.bias = bias.data; a.x = x.data;
        a.y = o.y.data;
        isa.table->pointwise_forward(a);
        a.bias = nullptr; a.y = nullptr;
        a.grad = grad.data; a.dx = o.dx.data;
        a.dalpha = o.dalpha.data; a.dshift = o.dshift.data; a.dweight = o.dweight.data; a.dbias = o.dbias.data;
        isa.table->pointwise_backward(a);
    };
    PointwiseOutputs o(c, t, param, rows * width, width, lead), two(c, t, param, rows * width, width, lead);
    run(o, 1);
    run(two, 2);
    same_bits("y", "with 2 threads", o.y, two.y);
    same_bits("dx", "with 2 threads", o.dx, two.dx);
    same_bits("dalpha", "with 2 threads", o.dalpha, two.dalpha);
    same_bits("dshift", "with 2 threads", o.dshift, two.dshift);
    same_bits("dweight", "with 2 threads", o.dweight, two.dweight);
    same_bits("dbias", "with 2 threads", o.dbias, two.dbias);

    const real u = unit_of(t), adds = additions(t, width);
    Expected y(o.y.size), dx(o.dx.size), dalpha(o.dalpha.size), dshift(o.dshift.size), dweight(o.dweight.size),
        dbias(o.dbias.size);
    for (int64_t i = 0; i < rows * width; ++i) {
        if (!real_row(i)) continue;
        const size_t column = (size_t)(i % width);
        const real a = alpha[0], s = c.shift ? shift[0] : 0, v = x[i], g = grad[i], inner = a * v + s;
        const real gain = c.weight ? weight[i % width] : 1, b = c.bias ? bias[i % width] : 0;
        const real value = c.erf ? erfl(inner) : tanhl(inner);
        const real slope = c.erf ? 2 / sqrtl(acosl(-1.0L)) * expl(-inner * inner) : 1 / (coshl(inner) * coshl(inner));
        const real inner_doubt = 2 * u * (fabsl(a * v) + fabsl(s));
        const real value_doubt = inner_doubt * slope + 4 * u * fabsl(value);
        // exp amplifies the rounding of its argument, 2|inner| or inner^2, by itself; below 1e-34 only zero matters.
        const real steep = c.erf ? 2 * inner * inner + 2 * fabsl(inner) * inner_doubt / u
                                 : 2 * fabsl(inner) + 2 * inner_doubt / u;
        const real slope_doubt = (8 + steep) * u * slope + 1e-34L;
        y.set(i, value * gain + b, (value_doubt + u * fabsl(value)) * fabsl(gain) + u * fabsl(b) + u * u);
        const real du = g * gain * slope, du_doubt = fabsl(g * gain) * slope_doubt + 3 * u * fabsl(du);
        dx.set(i, du * a, du_doubt * fabsl(a) + u * u * u);
        if (c.frozen) continue;
        dalpha.value[0] += du * v; dalpha.slack[0] += fabsl(v) * (du_doubt + adds * u * fabsl(du));
        if (c.shift) { dshift.value[0] += du; dshift.slack[0] += du_doubt + adds * u * fabsl(du); }
        if (c.weight) {
            dweight.value[column] += g * value;
            dweight.slack[column] += fabsl(g) * (value_doubt + 64 * u * fabsl(value));
        }
        if (c.bias) { dbias.value[column] += g; dbias.slack[column] += 64 * u * fabsl(g); }
    }
    compare("y", o.y, y);
    compare("dx", o.dx, dx);
    compare("dalpha", o.dalpha, dalpha);
    compare("dshift", o.dshift, dshift);
    compare("dweight", o.dweight, dweight);
    compare("dbias", o.dbias, dbias);
}

const PointwiseCase pointwise_cases[] = {
    {false, false, true,  true,  false, false, 0.7}, {false, false, false, false, true, false, 2.5},
    {false, false, true,  false, true,  true,  0.5}, {true,  true,  true,  true,  false, false, 0.7},
    {true,  true,  false, true,  true,  false, 1.9}, {true,  false, true,  false, false, true,  0.5},
};

// ---- special values ------------------------------------------------------------------------------------------------

// A NaN or an infinity in one valid cell spoils the statistics it belongs to, and nothing else.
void test_spoiled(const Isa& isa, DType t, double poison) {
    family = families + special_family;
    context = std::string(isa.name) + " " + format(t).name + (poison != poison ? " NaN" : " Inf") + " in cell (1, 5)";
    const int64_t rows = 5, width = 37, size = rows * width;
    Buffer x(t, size), clean(t, size), y(t, size), y_clean(t, size);
    clean.fill([&](int64_t) { return randomness.uniform(-2, 2); });
    x.fill([&](int64_t i) { return i == width + 5 ? poison : clean[i]; });
    auto spoiled_only = [&](const char* what, auto&& may_change) {
        bool held = true, caught = false;
        for (int64_t i = 0; i < size; ++i) {
            const double a = y[i], b = y_clean[i];
            if (may_change(i / width, i % width)) caught = caught || a != b;  // NaN differs from everything
            else held = held && a == b && a == a;
        }
        verdict(held, std::string(what) + ": the spoiled cell reached another statistic");
        verdict(caught, std::string(what) + ": the spoiled cell left no trace");
    };
    for (RowMode mode : {RowMode::layer, RowMode::rms, RowMode::scale}) {
        std::vector<double> mean((size_t)rows), rstd((size_t)rows);
        RowNorm a{};
        a.rows = rows; a.width = width; a.x_stride = width; a.partial = width; a.dtype = t; a.mode = mode; a.eps = 1e-5;
        a.threads = 1; a.alpha = 1; a.mean = mode == RowMode::layer ? mean.data() : nullptr; a.rstd = rstd.data();
        a.x = x.data; a.y = y.data;
        isa.table->row_forward(a);
        a.x = clean.data; a.y = y_clean.data;
        isa.table->row_forward(a);
        spoiled_only("row", [](int64_t r, int64_t) { return r == 1; });
    }
    for (bool planes : {false, true}) {
        // Columns: 5 rows of 37 channels. Planes: 5 channels of 37 positions.
        std::vector<double> mean(37), var(37), count(1);
        ColumnNorm a{};
        a.segments = 1; a.rows = planes ? width : rows; a.channels = a.groups = planes ? rows : width;
        a.planes = planes; a.pooled = a.centered = true; a.dtype = t; a.eps = 1e-5; a.threads = 1;
        a.mean = mean.data(); a.var = var.data(); a.count = count.data();
        a.x = x.data; a.y = y.data;
        isa.table->column_forward(a);
        a.x = clean.data; a.y = y_clean.data;
        isa.table->column_forward(a);
        spoiled_only(planes ? "planes" : "columns", [&](int64_t r, int64_t c) { return planes ? r == 1 : c == 5; });
    }
    for (bool erf : {false, true}) {
        Buffer alpha(DType::f32, 1);
        alpha.set(0, 0.7);
        Pointwise a{};
        a.rows = rows; a.width = width; a.dtype = t; a.erf = erf; a.threads = 1; a.alpha = alpha.data;
        a.x = x.data; a.y = y.data;
        isa.table->pointwise_forward(a);
        a.x = clean.data; a.y = y_clean.data;
        isa.table->pointwise_forward(a);
        spoiled_only(erf ? "erf" : "tanh", [](int64_t r, int64_t c) { return r == 1 && c == 5; });
        verdict(poison != poison ? y[width + 5] != y[width + 5] : y[width + 5] == 1, "the end of the curve");
    }
}

// Sums over very many rows. The gradients lie a little less than half a step above 1, as steps are around 1024: a sum
// that runs on beyond 1024 in the compute type, instead of being carried on in float64, loses that part every time.
void test_long_sums(const Isa& isa, DType t) {
    family = families + special_family;
    context = std::string(isa.name) + " " + format(t).name + " sums over many rows";
    const int64_t rows = 100003;
    Buffer x(t, rows), grad(t, rows), y(t, rows), dx(t, rows), weight(DType::f32, 1), dweight(DType::f32, 1),
        dbias(DType::f32, 1);
    Buffer mean(DType::f64, rows), rstd(DType::f64, rows), statistics(DType::f64, 3), alpha(DType::f32, 1);
    x.fill([](int64_t i) { return i % 2 ? 0.7 : -0.2; });
    grad.fill([&](int64_t) { return 1 + 0.49 * 1024 * 2 * (double)unit_of(t); });
    weight.set(0, 1.5);
    alpha.set(0, 0.9);
    const real g = grad[0], u = unit_of(t);
    Expected sum(1);
    sum.set(0, (real)rows * g, 64 * u * (real)rows * g);
    {
        RowNorm a{};
        a.rows = rows; a.width = a.x_stride = a.partial = 1; a.dtype = t; a.mode = RowMode::rms; a.eps = 1e-5;
        a.threads = 2;
        a.alpha = 1; a.weight = weight.data; a.x = x.data; a.y = y.data; a.rstd = rstd.doubles();
        isa.table->row_forward(a);
        a.grad = grad.data; a.dx = dx.data; a.dweight = dweight.data; a.dbias = dbias.data;
        isa.table->row_backward(a);
        compare("dbias of rows", dbias, sum);
        real product = 0;
        for (int64_t i = 0; i < rows; ++i) product += g * x[i] / sqrtl((real)x[i] * x[i] + 1e-5L);
        Expected want(1);
        want.set(0, product, 70 * u * (real)rows * g);
        compare("dweight of rows", dweight, want);
    }
    for (bool planes : {false, true}) {
        ColumnNorm a{};
        a.segments = a.channels = a.groups = 1; a.rows = rows; a.planes = planes; a.pooled = a.centered = true;
        a.dtype = t; a.eps = 1e-5;
        a.threads = 2; a.weight = weight.data; a.x = x.data; a.y = y.data;
        a.mean = statistics.doubles(); a.var = a.mean + 1; a.count = a.mean + 2;
        isa.table->column_forward(a);
        a.grad = grad.data; a.dx = dx.data; a.dweight = dweight.data; a.dbias = dbias.data;
        isa.table->column_backward(a);
        const real high = (real)((rows) / 2) / (real)rows, middle = high * x[1] + (1 - high) * x[0];
        const real spread = high * (x[1] - middle) * (x[1] - middle) + (1 - high) * (x[0] - middle) * (x[0] - middle);
        Expected want(3);
        want.set(0, middle, 32 * u);
        want.set(1, spread, 64 * u * spread);
        want.set(2, rows, 0);
        compare(planes ? "statistics of planes" : "statistics of columns", statistics, want);
        // planes: runs of 4096 in at least 8 lanes
        sum.set(0, (real)rows * g, (planes ? 4096 / 8 : 64) * u * (real)rows * g);
        compare(planes ? "dbias of planes" : "dbias of columns", dbias, sum);
    }
    {
        Pointwise a{};
        a.rows = rows; a.width = 1; a.dtype = t; a.threads = 2; a.alpha = alpha.data; a.x = x.data; a.y = y.data;
        isa.table->pointwise_forward(a);
        a.grad = grad.data; a.dx = dx.data; a.dbias = dbias.data;
        isa.table->pointwise_backward(a);
        sum.set(0, (real)rows * g, 64 * u * (real)rows * g);
        compare("dbias of pointwise", dbias, sum);
    }
}

// Padding between real rows changes no bit of what is computed from them.
void test_padding(const Isa& isa, DType t) {
    family = families + special_family;
    context = std::string(isa.name) + " " + format(t).name + " with padding added";
    const int64_t rows = 131, channels = 37;
    std::vector<uint8_t> mask;
    while ((int64_t)mask.size() < rows || !mask.back()) mask.push_back(randomness.chance(0.5));
    int64_t real_rows = 0;
    for (uint8_t m : mask) real_rows += m;
    const int64_t all = (int64_t)mask.size();
    Buffer dense(t, real_rows * channels), grad_dense(t, real_rows * channels), spread(t, all * channels),
        grad_spread(t, all * channels);
    dense.fill([&](int64_t) { return randomness.uniform(-2, 2); });
    grad_dense.fill([&](int64_t) { return randomness.uniform(-1, 1); });
    for (bool planes : {false, true}) {
        auto at = [&](int64_t n, int64_t r, int64_t c) { return planes ? c * n + r : r * channels + c; };
        for (int64_t r = 0, k = 0; r < all; k += mask[(size_t)r++])
            for (int64_t c = 0; c < channels; ++c) {
                spread.set(at(all, r, c), mask[(size_t)r] ? dense[at(real_rows, k, c)] : NAN);
                grad_spread.set(at(all, r, c), mask[(size_t)r] ? grad_dense[at(real_rows, k, c)] : NAN);
            }
        Buffer statistics[2] = {{DType::f64, 4 * channels + 1}, {DType::f64, 4 * channels + 1}};
        Buffer y(t, real_rows * channels), dx(t, real_rows * channels);
        Buffer y_spread(t, all * channels), dx_spread(t, all * channels);
        for (bool padded : {false, true}) {
            double* s = statistics[padded].doubles();
            ColumnNorm a{};
            a.segments = 1; a.rows = padded ? all : real_rows; a.channels = a.groups = channels; a.planes = planes;
            a.pooled = a.centered = true; a.dtype = t; a.eps = 1e-5; a.threads = 2;
            a.mask = padded ? mask.data() : nullptr;
            a.mean = s; a.var = s + channels; a.sum_grad = s + 2 * channels; a.sum_grad_xhat = s + 3 * channels;
            a.count = s + 4 * channels;
            a.x = padded ? spread.data : dense.data; a.y = padded ? y_spread.data : y.data;
            isa.table->column_forward(a);
            a.grad = padded ? grad_spread.data : grad_dense.data; a.dx = padded ? dx_spread.data : dx.data;
            isa.table->column_backward(a);
        }
        verdict(statistics[0].same(statistics[1]), planes ? "statistics of planes" : "statistics of columns");
        bool same = true;
        for (int64_t r = 0, k = 0; r < all; k += mask[(size_t)r++])
            for (int64_t c = 0; mask[(size_t)r] && c < channels; ++c)
                same = same && y_spread[at(all, r, c)] == y[at(real_rows, k, c)] &&
                       dx_spread[at(all, r, c)] == dx[at(real_rows, k, c)];
        verdict(same, planes ? "y and dx of planes" : "y and dx of columns");
    }
}

// ---- working memory ------------------------------------------------------------------------------------------------

std::atomic<long> allocations, refused;  // `refused`: the number of the one that fails, -1 = none
std::atomic<size_t> largest;
void* counted_allocate(size_t alignment, size_t bytes) {
    size_t most = largest;
    while (bytes > most && !largest.compare_exchange_weak(most, bytes)) {}
    return allocations++ == refused ? nullptr : aligned_alloc(alignment, bytes);
}

// One norm of many segments, forward and backward: what it read and wrote.
struct Segments {
    int64_t segments, rows, channels, groups;
    bool planes, pooled, masked;
    DType t;
    std::vector<uint8_t> mask;
    Buffer x, grad, weight, y, dx, dweight, dbias, statistics;
    Segments(int64_t s, int64_t r, int64_t c, int64_t g, bool planes_, bool pooled_, bool masked_, DType t_)
        : segments(s), rows(r), channels(c), groups(g), planes(planes_), pooled(pooled_), masked(masked_), t(t_),
          mask((size_t)(s * r)), x(t, s * r * c), grad(t, s * r * c), weight(t, c), y(t, s * r * c), dx(t, s * r * c), dweight(t, c),
          dbias(t, c), statistics(DType::f64, sets() * (2 * g + 1)) {
        x.fill([](int64_t) { return randomness.uniform(-2, 2); });
        grad.fill([](int64_t) { return randomness.uniform(-1, 1); });
        weight.fill([](int64_t) { return randomness.uniform(0.5, 1.5); });
        for (uint8_t& m : mask) m = randomness.chance(0.6);
    }
    int64_t sets() const { return pooled ? 1 : segments; }
    ColumnNorm describe(int threads) {
        ColumnNorm a{};
        a.segments = segments; a.rows = rows; a.channels = channels; a.groups = groups; a.planes = planes; a.pooled = pooled;
        a.centered = true; a.dtype = a.param_dtype = t; a.eps = 1e-5; a.threads = threads; a.mask = masked ? mask.data() : nullptr;
        a.weight = weight.data; a.x = x.data; a.y = y.data; a.grad = grad.data; a.dx = dx.data;
        a.dweight = dweight.data; a.dbias = dbias.data;
        a.mean = statistics.doubles(); a.var = a.mean + sets() * groups; a.count = a.var + sets() * groups;
        return a;
    }
    void run(const Isa& isa, int threads) {
        const ColumnNorm a = describe(threads);
        isa.table->column_forward(a);
        isa.table->column_backward(a);
    }
    std::vector<char> written() const {
        std::vector<char> all;
        for (const Buffer* b : {&y, &dx, &dweight, &dbias, &statistics}) all.insert(all.end(), b->data, b->data + b->size * (int64_t)format(b->type).bytes);
        return all;
    }
};

// However many segments there are: the bits of each are those it has by itself, and no piece of working memory grows with them.
void test_parts(const Isa& isa, DType t) {
    family = families + memory_family;
    struct Shape { int64_t segments, rows, channels, groups; bool planes, masked; };
    const Shape shapes[] = {{1500, 1, 50, 5, false, false}, {900, 3, 31, 31, false, true}, {5000, 1, 1, 1, false, false},
                            {700, 7, 24, 3, true, true}, {9, 130, 140, 7, false, true}, {40, 20, 1030, 10, false, false}};
    for (const Shape& shape : shapes) {
        context = std::string(isa.name) + " " + format(t).name + " " + std::to_string(shape.segments) + " segments of " +
                  std::to_string(shape.rows) + "x" + std::to_string(shape.channels);
        Segments all(shape.segments, shape.rows, shape.channels, shape.groups, shape.planes, false, shape.masked, t);
        largest = 0;
        all.run(isa, 1);
        verdict(largest <= (size_t)5 << 20, "a piece of working memory has " + std::to_string(largest) + " bytes");
        const std::vector<char> by_one = all.written();
        for (int threads : {2, 5}) {
            all.run(isa, threads);
            verdict(all.written() == by_one, "other bits with " + std::to_string(threads) + " threads");
        }
        const int64_t size = shape.rows * shape.channels, groups = shape.groups, channels = shape.channels;
        const size_t bytes = (size_t)size * format(t).bytes;
        std::vector<double> sums((size_t)(4 * channels), 0);  // of this segment, of all
        bool same = true;
        for (int64_t s = 0; s < shape.segments; ++s) {
            Buffer y(t, size), dx(t, size), statistics(DType::f64, 2 * groups + 1);
            ColumnNorm a = all.describe(1);
            a.segments = 1;
            if (a.mask) a.mask += s * shape.rows;
            a.x = all.x.data + (size_t)s * bytes; a.grad = all.grad.data + (size_t)s * bytes; a.y = y.data; a.dx = dx.data;
            a.mean = statistics.doubles(); a.var = a.mean + groups; a.count = a.var + groups;
            a.dweight = a.dbias = nullptr; a.sum_grad = sums.data(); a.sum_grad_xhat = sums.data() + channels;
            isa.table->column_forward(a);
            isa.table->column_backward(a);
            same = same && !memcmp(y.data, all.y.data + (size_t)s * bytes, bytes) && !memcmp(dx.data, all.dx.data + (size_t)s * bytes, bytes);
            for (int64_t i = 0; i < 2 * channels; ++i) sums[(size_t)(2 * channels + i)] += sums[(size_t)i];
        }
        verdict(same, "y or dx has other bits than the segment by itself");
        Buffer dweight(t, channels), dbias(t, channels);
        dbias.fill([&](int64_t c) { return sums[(size_t)(2 * channels + c)]; });
        dweight.fill([&](int64_t c) { return sums[(size_t)(3 * channels + c)]; });
        same_bits("dweight", "than the segments' sums, added in order", all.dweight, dweight);
        same_bits("dbias", "than the segments' sums, added in order", all.dbias, dbias);
    }
}

// Rows so wide that the sums of all tasks are not held at once: with many threads they are, and the bits are the same.
void test_wide_sums(const Isa& isa) {
    family = families + memory_family;
    context = std::string(isa.name) + " sums of very wide rows";
    const int64_t rows = 67, width = 70001, size = rows * width;
    Buffer x(DType::f32, size), grad(DType::f32, size), y(DType::f32, size), dx(DType::f32, size), rstd(DType::f64, rows);
    x.fill([](int64_t i) { return (double)(i % 1009) / 500 - 1; });
    grad.fill([](int64_t i) { return (double)(i % 757) / 400 - 1; });
    Buffer dweight[2] = {{DType::f32, width}, {DType::f32, width}}, dbias[2] = {{DType::f32, width}, {DType::f32, width}};
    for (int many : {0, 1}) {
        RowNorm a{};
        a.rows = rows; a.width = a.x_stride = a.partial = width; a.mode = RowMode::rms; a.eps = 1e-5; a.alpha = 1;
        a.threads = many ? 9 : 2; a.x = x.data; a.y = y.data; a.rstd = rstd.doubles();
        isa.table->row_forward(a);
        a.grad = grad.data; a.dx = dx.data; a.dweight = dweight[many].data; a.dbias = dbias[many].data;
        largest = 0;
        isa.table->row_backward(a);
        verdict(many ? largest > (size_t)18 << 20 : largest <= (size_t)17 << 20, "totals of " + std::to_string(largest) + " bytes");
    }
    same_bits("dweight", "in several rounds", dweight[0], dweight[1]);
    same_bits("dbias", "in several rounds", dbias[0], dbias[1]);
}

// Each piece of working memory is refused in turn, on the calling thread and on others: the kernel says so, frees the rest
// (LeakSanitizer watches) and computes the same bits afterwards. With memory that is kept between calls, too.
void test_refused_memory(const Isa& isa) {
    family = families + memory_family;
    const DType t = DType::f32;
    Segments tiles(600, 2, 64, 8, false, false, true, t), team(5, 300, 64, 8, false, false, true, t),
        batch(1, 1500, 64, 64, false, true, true, t), planes(2, 1100, 32, 32, true, true, true, t);
    Buffer x(t, 1500 * 64), grad(t, 1500 * 64), y(t, 1500 * 64), dx(t, 1500 * 64), dweight(t, 64), dalpha(t, 1), rstd(DType::f64, 1500);
    x.fill([](int64_t) { return randomness.uniform(-2, 2); });
    grad.fill([](int64_t) { return randomness.uniform(-1, 1); });
    dalpha.set(0, 0);
    Buffer alpha(t, 1);
    alpha.set(0, 0.5);
    const auto rows = [&](int threads) {
        RowNorm a{};
        a.rows = 1500; a.width = a.x_stride = a.partial = 64; a.mode = RowMode::rms; a.eps = 1e-5; a.alpha = 1; a.threads = threads;
        a.x = x.data; a.y = y.data; a.rstd = rstd.doubles(); a.grad = grad.data; a.dx = dx.data; a.dweight = dweight.data;
        isa.table->row_forward(a);
        isa.table->row_backward(a);
    };
    const auto points = [&](int threads) {
        Pointwise a{};
        a.rows = 1500; a.width = 64; a.threads = threads; a.alpha = alpha.data; a.x = x.data; a.y = y.data; a.grad = grad.data;
        a.dx = dx.data; a.dweight = dweight.data; a.dalpha = dalpha.data;
        isa.table->pointwise_forward(a);
        isa.table->pointwise_backward(a);
    };
    const auto bits = [&] {
        std::vector<char> all;
        for (const Buffer* b : {&y, &dx, &dweight, &dalpha}) all.insert(all.end(), b->data, b->data + b->size * 4);
        for (const Segments* s : {&tiles, &team, &batch, &planes}) {
            const std::vector<char> more = s->written();
            all.insert(all.end(), more.begin(), more.end());
        }
        return all;
    };
    const auto each = [&](auto&& f) {
        f("row norm", rows);
        f("pointwise", points);
        f("many segments", [&](int n) { tiles.run(isa, n); });
        f("long segments", [&](int n) { team.run(isa, n); });
        f("batch norm", [&](int n) { batch.run(isa, n); });
        f("planes", [&](int n) { planes.run(isa, n); });
    };
    each([](const char*, auto&& run) { run(3); });
    const std::vector<char> before = bits();
    each([&](const char* what, auto&& run) {
        context = std::string(isa.name) + " " + what + " without memory";
        long n = 0;
        for (bool through = false; !through; ++n) {
            allocations = 0;
            refused = n;
            try {
                run(3);
                through = allocations <= n;
                verdict(through, "went on without its memory");
            } catch (const OutOfMemory& e) {
                verdict(e.bytes > 0 && strstr(e.what(), "not enough memory"), "says what was wanted");
            }
        }
        refused = -1;
        verdict(n > 4, "asked for memory " + std::to_string(n) + " times only");
        run(3);
    });
    context = std::string(isa.name) + " after refusals";
    verdict(bits() == before, "other bits than before");
    for (size_t kept : {(size_t)4096, (size_t)64 << 10, (size_t)5 << 20}) {
        context = std::string(isa.name) + " with " + std::to_string(kept) + " bytes kept between calls";
        scratch_kept = kept;
        std::thread([&] {  // a thread takes the size it first meets, and gives it back when it ends
            each([](const char*, auto&& run) { run(1); });
            each([](const char*, auto&& run) { run(1); });
        }).join();
        scratch_kept = 0;
        verdict(bits() == before, "other bits than before");
    }
}

}  // namespace

int main() {
    refused = -1;
    scratch_kept = 0;
    scratch_allocate = counted_allocate;
    const int64_t widths[] = {1, 31, 32, 33, 67, 257}, heights[] = {0, 1, 3, 67};
    setvbuf(stdout, nullptr, _IOLBF, 0);  // what failed before a sanitizer stops the program must be seen
    unsigned turn = 0;
    for (const Isa* isa = isas; isa->name; ++isa) {
        if (!isa->supported()) {
            printf("%s: not on this machine\n", isa->name);
            continue;
        }
        for (DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
            // No sample at all. First, and group norms before batch norms: no scratch memory exists yet.
            for (auto c = std::rbegin(column_cases); c != std::rend(column_cases); ++c)
                for (bool planes : {false, true}) test_columns(*isa, *c, planes, t, t, 0, 5, 7, 0);
            // In turn: buffers on and off alignment, parameters of the input's type and of float32.
            auto lead = [&] { return (int)(++turn & 1); };
            auto param = [&] { return turn & 2 ? t : DType::f32; };
            for (const RowCase& c : row_cases) {  // so wide that every instruction set sums in several runs
                const int off = lead();
                test_rows(*isa, c, t, param(), 2, 8209, off);
            }
            for (int64_t width : widths)
                for (int64_t rows : heights) {
                    for (const RowCase& c : row_cases) {
                        const int off = lead();
                        test_rows(*isa, c, t, param(), rows, width, off);
                    }
                    for (const PointwiseCase& c : pointwise_cases) {
                        const int off = lead();
                        test_pointwise(*isa, c, t, param(), rows, width, off);
                    }
                    for (const ColumnCase& c : column_cases) {
                        const int off = lead();
                        if (rows * width > 10000 && turn % 3) continue;  // a third of the cases at the largest size
                        for (bool planes : {false, true})
                            test_columns(*isa, c, planes, t, param(), rows == 1 ? 1 : 3, rows, width, off);
                    }
                }
            test_spoiled(*isa, t, NAN);
            test_spoiled(*isa, t, INFINITY);
            test_padding(*isa, t);
            test_long_sums(*isa, t);
            test_parts(*isa, t);
        }
        test_wide_sums(*isa);
        test_refused_memory(*isa);
    }
    long passed = 0, failed = 0;
    for (const Family& f : families) {
        printf("%-20s %7ld checks, the worst error used %.2f of its tolerance\n", f.name, f.passed + f.failed, f.worst);
        passed += f.passed;
        failed += f.failed;
    }
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed || !passed;
}
