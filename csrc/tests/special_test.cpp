// Values that are not numbers, padding, and sums over many rows.
#include "testing.h"

namespace normlab {
namespace {

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

}  // namespace

void test_special_values(const Isa& isa, DType t) {
    test_spoiled(isa, t, NAN);
    test_spoiled(isa, t, INFINITY);
    test_padding(isa, t);
    test_long_sums(isa, t);
}

}  // namespace normlab
