// Row norms, alone and with a residual.
#include "testing.h"

namespace normlab {
namespace {

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

}  // namespace

void test_rows(const Isa& isa, DType t, Turn& turn, int64_t rows, int64_t width) {
    for (const RowCase& c : row_cases) {
        const int off = turn.lead();
        test_rows(isa, c, t, turn.param(t), rows, width, off);
    }
}

}  // namespace normlab
