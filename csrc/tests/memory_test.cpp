// Working memory: how much a kernel asks for, and what it does when there is none.
#include <atomic>
#include <thread>

#include "testing.h"

namespace normlab {
namespace {

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

}  // namespace

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

void count_allocations() {
    refused = -1;
    scratch_allocate = counted_allocate;
}

}  // namespace normlab
