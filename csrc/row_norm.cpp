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
#include "moments.h"
#include "sums.h"

namespace normlab {
namespace NORMLAB_ISA {
namespace {

// Beyond this range (x - mean) * rstd is computed in float64.
inline bool extreme(double mean, double rstd) { return !(fabs(mean) < 1e18 && rstd > 1e-18 && rstd < 1e18); }

inline double row_rstd(const RowNorm& a, double square) {
    if (a.mode != RowMode::scale) return 1.0 / sqrt(square + a.eps);
    const double norm = sqrt(square * (double)a.width);
    return 1.0 / (norm > a.eps ? norm : norm == norm ? a.eps : norm);
}

inline double projection(const RowNorm& a, double rstd) {
    if (a.mode == RowMode::layer) return 1.0 / (double)a.width;
    if (a.mode == RowMode::rms) return 1.0 / (double)a.partial;
    return rstd == 1.0 / a.eps ? 0.0 : 1.0;  // clamped: |x| <= eps, the length is a constant there
}

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

template <class T> void add_residual(const RowNorm& a, int64_t row, T* out, const Dropout<T>& dropout) {
    typedef typename Compute<T>::type C;
    const T* x = (const T*)a.x + row * a.x_stride;
    const T* branch = (const T*)a.branch + row * a.width;
    const Block<C> alpha = Block<C>::all((C)a.alpha);
    if (a.drop > 0) {
        const uint32_t key = row_key(a.seed, row);
        each_block<C>(a.width, [&](int64_t j, auto count) __attribute__((always_inline)) {
            store(out + j, alpha * load(x + j, count) + load(branch + j, count) * dropout(key, j), count);
        });
    } else {
        each_block<C>(a.width, [&](int64_t j, auto count) __attribute__((always_inline)) {
            store(out + j, alpha * load(x + j, count) + load(branch + j, count), count);
        });
    }
}

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

// ---- forward --------------------------------------------------------------------------------------------------

template <class T> struct RowForward {
    typedef typename Compute<T>::type C;
    const RowNorm& a;
    const C *gain, *bias;
    const Output& out;
    int64_t next;

    template <bool round_first> void exact(const T* x, T* y, double mean, double rstd) const {
        for (int64_t j = 0; j < a.width; ++j) {
            double xhat = (get(x, j) - mean) * rstd;
            if (round_first) { T r; put(&r, 0, xhat); xhat = get(&r, 0); }
            put(y, j, xhat * gain[slot<T>(j)] + bias[slot<T>(j)]);
        }
    }
    template <int R, bool round_first>
    void rows(const T* const* x, const int64_t* row, const double* mean, const double* rstd) const {
        typedef Block<C> Bk;
        // Copies the compiler can hold in registers: a store through T* may reach whatever lies in memory.
        const Output to = out;
        const int64_t far = next;
        const T* from[R];
        T* y[R];
        C hi[R], r[R], rest[R];
        bool beyond = false;
        for (int i = 0; i < R; ++i) {
            from[i] = x[i];
            y[i] = (T*)a.y + row[i] * a.width;
            hi[i] = (C)mean[i];
            r[i] = (C)rstd[i];
            rest[i] = (C)(-(mean[i] - hi[i]) * rstd[i]);
            beyond |= extreme(mean[i], rstd[i]);
        }
        if (beyond) {
            if constexpr (R == 1) exact<round_first>(*x, *y, *mean, *rstd);
            else for (int i = 0; i < R; ++i) rows<1, round_first>(x + i, row + i, mean + i, rstd + i);
            return;
        }
        const auto pass = [&](auto form) __attribute__((always_inline)) {
            each_block<C>(a.width, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk factor = load_same(gain + j), constant = load_same(bias + j);
                for (int i = 0; i < R; ++i) {
                    if (far) {
                        prefetch(from[i] + j + far);
                        to.announce(y[i] + j + far);
                    }
                    Bk xhat = standardized(form, load(from[i] + j, count), hi[i], r[i], rest[i]);
                    if (round_first) xhat = rounded<T>(xhat);
                    to.write(y[i] + j, xhat * factor + constant, count);
                }
            });
        };
        if (a.mode == RowMode::layer) pass(Centered{});
        else pass(Plain{});
    }
};

template <class T> void forward(const RowNorm& a) {
    typedef typename Compute<T>::type C;
    const int64_t wide = padded<C>(a.width);
    const Scratch room((size_t)wide * 2 * sizeof(C));
    C *gain = room.as<C>(), *bias = gain + wide;
    unpack_gain<T>(a, gain);
    unpack<T>(bias, a.param_dtype, a.bias, a.width, 0, 0);
    const size_t bytes = (size_t)(a.rows * a.width) * sizeof(T);
    expect_huge(a.y, bytes);
    if (a.stream) expect_huge(a.stream, bytes);

    const Dropout<T> dropout(a.drop);
    const int64_t counted = a.mode == RowMode::rms ? a.partial : a.width;
    const LaneMask<C> tail = first<T>(counted % Block<C>::B);
    const Output out((const T*)a.y, a.rows * a.width, a.width);
    const RowForward<T> kernel{a, gain, bias, out, ahead<T>(a)};
    const int64_t per_task = 16384 / a.width > 1 ? 16384 / a.width : 1;
    run_tasks((a.rows + per_task - 1) / per_task, a.rows * a.width, a.threads, [&](int64_t task) {
        const int64_t end = (task + 1) * per_task < a.rows ? (task + 1) * per_task : a.rows;
        row_groups<T>(a, task * per_task, end, [&](const Group<T>& group) {
            if (a.branch)
                for (int i = 0; i < group.held; ++i)
                    add_residual<T>(a, group.row[i], (T*)a.stream + group.row[i] * a.width, dropout);
            Moments m[most_rows];
            double mean[most_rows], rstd[most_rows];
            const bool centered = a.mode == RowMode::layer;
            if (group.held == most_rows) moments_together<most_rows>(group.x, counted, centered, a.eps, tail, m);
            else
                for (int i = 0; i < group.held; ++i) m[i] = moments(group.x[i], counted, centered, a.eps, tail);
            for (int i = 0; i < group.held; ++i) {
                mean[i] = m[i].mean;
                rstd[i] = row_rstd(a, m[i].square);
                if (a.mean) a.mean[group.row[i]] = mean[i];
                a.rstd[group.row[i]] = rstd[i];
            }
            if (group.held == most_rows && !out.past_caches) {
                if (a.round_before_gain) kernel.template rows<most_rows, true>(group.x, group.row, mean, rstd);
                else kernel.template rows<most_rows, false>(group.x, group.row, mean, rstd);
                return;
            }
            for (int i = 0; i < group.held; ++i) {
                if (a.round_before_gain) kernel.template rows<1, true>(group.x + i, group.row + i, mean + i, rstd + i);
                else kernel.template rows<1, false>(group.x + i, group.row + i, mean + i, rstd + i);
            }
        }, [&](int64_t row) {
            memset((T*)a.y + row * a.width, 0, (size_t)a.width * sizeof(T));
            if (a.stream) memset((T*)a.stream + row * a.width, 0, (size_t)a.width * sizeof(T));
            if (a.mean) a.mean[row] = 0;
            a.rstd[row] = 0;
        });
        out.finish();
    });
}

// ---- backward -------------------------------------------------------------------------------------------------

template <class T> struct RowGradient {
    typedef typename Compute<T>::type C;
    const RowNorm& a;
    const C* gain;
    const Dropout<T>& dropout;
    typename ColumnSums<T>::Task& sums;  // used only when params
    const Output& out;
    int64_t next;

    struct Projections { C c1, c2; };

    template <bool params, bool round_first> void exact(int64_t row, const T* x, double mean, double rstd) const {
        const T* grad = (const T*)a.grad + row * a.width;
        const T* grad_stream = a.grad_stream ? (const T*)a.grad_stream + row * a.width : nullptr;
        T* dx = (T*)a.dx + row * a.width;
        double s1 = 0, s2 = 0;
        for (int64_t j = 0; j < a.width; ++j) {
            const double g = get(grad, j) * gain[slot<T>(j)];
            s1 += g;
            s2 += g * ((get(x, j) - mean) * rstd);
        }
        const double c1 = a.mode == RowMode::layer ? s1 / (double)a.width : 0, c2 = s2 * projection(a, rstd);
        const uint32_t key = row_key(a.seed, row);
        for (int64_t j = 0; j < a.width; ++j) {
            const int64_t s = slot<T>(j);
            const double xhat = (get(x, j) - mean) * rstd, g = get(grad, j);
            if (params) {
                double seen = xhat;
                if (round_first) { T r; put(&r, 0, xhat); seen = get(&r, 0); }
                sums.add(s, g, seen);
            }
            double d = rstd * (g * gain[s] - c1 - (j < a.partial ? xhat * c2 : 0));
            if (grad_stream) d += get(grad_stream, j);
            put(dx, j, d * a.alpha);
            if (a.dbranch) {
                const bool kept = a.drop == 0 || mix(key + (uint32_t)j * 0x9e3779b9u) >= dropout.threshold;
                put((T*)a.dbranch + row * a.width, j, kept ? d * dropout.scale : 0);
            }
        }
    }

    Projections project(int64_t row, const T* x, double mean, double rstd) const {
        typedef Block<C> Bk;
        const T* grad = (const T*)a.grad + row * a.width;
        double sum = 0, sum_along = 0;
        if (a.mode != RowMode::layer) {
            each_run<C>(a.width, [&](int64_t from, int64_t length) __attribute__((always_inline)) {
                Bk along = Bk::all(0);
                each_block<C>(length, [&](int64_t k, auto count) __attribute__((always_inline)) {
                    const int64_t j = from + k;
                    along = along + load(grad + j, count) * load_same(gain + j) * load(x + j, count);
                });
                sum_along += (double)horizontal(along);
            });
            return {0, (C)(sum_along * rstd * projection(a, rstd))};
        }
        const C hi = (C)mean;
        each_run<C>(a.width, [&](int64_t from, int64_t length) __attribute__((always_inline)) {
            Bk total = Bk::all(0), along = Bk::all(0);
            each_block<C>(length, [&](int64_t k, auto count) __attribute__((always_inline)) {
                const int64_t j = from + k;
                const Bk g = load(grad + j, count) * load_same(gain + j);
                total = total + g;
                along = along + g * (load(x + j, count) - hi);
            });
            sum += (double)horizontal(total);
            sum_along += (double)horizontal(along);
        });
        // The rest of the mean, below the precision of hi, enters here instead of once per element.
        const double share = 1.0 / (double)a.width;
        return {(C)(sum * share), (C)((sum_along - sum * (mean - hi)) * rstd * share)};
    }

    // What most rows need: `streamed` says whether a gradient arrives on the stream as well.
    template <int R, bool params, bool round_first, bool streamed>
    void rows(const T* const* x, const int64_t* row, const double* mean, const Projections* p) const {
        typedef Block<C> Bk;
        const Output to = out;
        const int64_t far = next;
        const T *from[R], *grad[R], *above[R];
        T* dx[R];
        C hi[R], r[R], rest[R], c1[R], c2[R];
        bool beyond = false;
        for (int i = 0; i < R; ++i) {
            const double rstd = a.rstd[row[i]];
            from[i] = x[i];
            grad[i] = (const T*)a.grad + row[i] * a.width;
            if (streamed) above[i] = (const T*)a.grad_stream + row[i] * a.width;
            dx[i] = (T*)a.dx + row[i] * a.width;
            hi[i] = (C)mean[i];
            r[i] = (C)rstd;
            rest[i] = (C)(-(mean[i] - hi[i]) * rstd);
            c1[i] = p[i].c1;
            c2[i] = p[i].c2;
            beyond |= extreme(mean[i], rstd);
        }
        if (beyond) {
            if constexpr (R == 1) exact<params, round_first>(*row, *x, *mean, a.rstd[*row]);
            else
                for (int i = 0; i < R; ++i) rows<1, params, round_first, streamed>(x + i, row + i, mean + i, p + i);
            if (params && R == 1) sums.next_rows(1);
            return;
        }
        const auto pass = [&](auto form) __attribute__((always_inline)) {
            each_block<C>(a.width, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk factor = load_same(gain + j);
                auto sum = sums.template at<params>(j);
                for (int i = 0; i < R; ++i) {
                    if (far) {
                        prefetch(from[i] + j + far);
                        prefetch(grad[i] + j + far);
                        if (streamed) prefetch(above[i] + j + far);
                        to.announce(dx[i] + j + far);
                    }
                    const Bk g = load(grad[i] + j, count);
                    const Bk xhat = standardized(form, load(from[i] + j, count), hi[i], r[i], rest[i]);
                    sum.add(g, round_first ? rounded<T>(xhat) : xhat);
                    Bk inner = g * factor;
                    if (form.centered) inner = inner - c1[i];
                    Bk d = (inner - xhat * c2[i]) * r[i];
                    if (streamed) d = d + load(above[i] + j, count);
                    to.write(dx[i] + j, d, count);
                }
                sum.keep();
            });
        };
        if (a.mode == RowMode::layer) pass(Centered{});
        else pass(Plain{});
        if (params) sums.next_rows(R);
    }

    // Everything: alpha, a branch with dropout, a partial statistic as well.
    template <bool params, bool round_first>
    void row(int64_t row, const T* x, double mean, const Projections& p) const {
        typedef Block<C> Bk;
        const double rstd = a.rstd[row];
        if (extreme(mean, rstd)) {
            exact<params, round_first>(row, x, mean, rstd);
            if (params) sums.next_rows(1);
            return;
        }
        const Output to = out;
        const int64_t far = next;
        const T* grad = (const T*)a.grad + row * a.width;
        T* dx = (T*)a.dx + row * a.width;
        const T* grad_stream = a.grad_stream ? (const T*)a.grad_stream + row * a.width : nullptr;
        T* dbranch = a.dbranch ? (T*)a.dbranch + row * a.width : nullptr;
        const C hi = (C)mean, r = (C)rstd, rest = (C)(-(mean - hi) * rstd), c1 = p.c1, c2 = p.c2, alpha = (C)a.alpha;
        const uint32_t key = row_key(a.seed, row);
        const int64_t partial = a.partial;
        const bool drops = a.drop > 0;
        each_block<C>(a.width, [&](int64_t j, auto count) __attribute__((always_inline)) {
            if (far) {
                prefetch(grad + j + far);
                prefetch(x + j + far);
                if (grad_stream) prefetch(grad_stream + j + far);
                to.announce(dx + j + far);
            }
            const Bk g = load(grad + j, count), xhat = (load(x + j, count) - hi) * r + rest;
            sums.template add_row<params>(j, g, round_first ? rounded<T>(xhat) : xhat);
            Bk inside = xhat * c2;
            if (j + Bk::B > partial) inside = keep(inside, first<T>(partial - j));
            Bk d = (g * load_same(gain + j) - c1 - inside) * r;
            if (grad_stream) d = d + load(grad_stream + j, count);
            to.write(dx + j, d * alpha, count);
            if (dbranch) to.write(dbranch + j, drops ? d * dropout(key, j) : d, count);
        });
        if (params) sums.next_rows(1);
    }

    template <bool params, bool round_first, bool streamed>
    void group(const Group<T>& g, const double* mean, const Projections* p) const {
        if (g.held == most_rows && !out.past_caches) return rows<most_rows, params, round_first, streamed>(g.x, g.row, mean, p);
        for (int i = 0; i < g.held; ++i) rows<1, params, round_first, streamed>(g.x + i, g.row + i, mean + i, p + i);
    }
    template <bool params, bool round_first>
    void group(const Group<T>& g, const double* mean, const Projections* p) const {
        if (a.alpha == 1 && !a.dbranch && a.partial == a.width) {
            if (a.grad_stream) group<params, round_first, true>(g, mean, p);
            else group<params, round_first, false>(g, mean, p);
            return;
        }
        for (int i = 0; i < g.held; ++i) row<params, round_first>(g.row[i], g.x[i], mean[i], p[i]);
    }
};

template <class T> void backward(const RowNorm& a) {
    typedef typename Compute<T>::type C;
    const bool params = a.dweight || a.dbias;
    ColumnSums<T> sums(a.rows, a.width, params, a.threads);
    const Scratch room((size_t)sums.wide * sizeof(C));
    C* gain = room.as<C>();
    unpack_gain<T>(a, gain);
    const size_t bytes = (size_t)(a.rows * a.width) * sizeof(T);
    expect_huge(a.dx, bytes);
    if (a.dbranch) expect_huge(a.dbranch, bytes);

    const Dropout<T> dropout(a.drop);
    Output out((const T*)a.dx, a.rows * a.width, a.width);
    if (a.dbranch && (uintptr_t)a.dbranch % 64) out.past_caches = false;
    sums.run([&](int64_t t, typename ColumnSums<T>::Task& task) {
        const RowGradient<T> kernel{a, gain, dropout, task, out, ahead<T>(a)};
        row_groups<T>(a, sums.begin(t), sums.end(t), [&](const Group<T>& group) {
            double mean[most_rows];
            typename RowGradient<T>::Projections p[most_rows];
            for (int i = 0; i < group.held; ++i) {
                mean[i] = a.mean ? a.mean[group.row[i]] : 0;
                p[i] = kernel.project(group.row[i], group.x[i], mean[i], a.rstd[group.row[i]]);
            }
            if (!params) kernel.template group<false, false>(group, mean, p);
            else if (a.round_before_gain) kernel.template group<true, true>(group, mean, p);
            else kernel.template group<true, false>(group, mean, p);
        }, [&](int64_t row) {
            memset((T*)a.dx + row * a.width, 0, (size_t)a.width * sizeof(T));
            if (a.dbranch) memset((T*)a.dbranch + row * a.width, 0, (size_t)a.width * sizeof(T));
        });
        out.finish();
    });
    if (!params) return;
    if (a.mode != RowMode::scale) return sums.write(a.param_dtype, a.dweight, a.dbias);
    double total = 0;
    for (int64_t j = 0; j < a.width; ++j) total += sums.product(j);
    put(a.param_dtype, a.dweight, 0, total);
}

}  // namespace

void row_forward(const RowNorm& a) {
    switch (a.dtype) {
        case DType::f32: return forward<float>(a);
        case DType::f64: return forward<double>(a);
        case DType::bf16: return forward<bf16>(a);
        case DType::f16: return forward<f16>(a);
    }
}

void row_backward(const RowNorm& a) {
    switch (a.dtype) {
        case DType::f32: return backward<float>(a);
        case DType::f64: return backward<double>(a);
        case DType::bf16: return backward<bf16>(a);
        case DType::f16: return backward<f16>(a);
    }
}

}  // namespace NORMLAB_ISA
}  // namespace normlab
