// DyT and Derf.
#include "testing.h"

namespace normlab {
namespace {

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

}  // namespace

void test_pointwise(const Isa& isa, DType t, Turn& turn, int64_t rows, int64_t width) {
    for (const PointwiseCase& c : pointwise_cases) {
        const int off = turn.lead();
        test_pointwise(isa, c, t, turn.param(t), rows, width, off);
    }
}

}  // namespace normlab
