// Row norms backward: dx of each row (and of the branch of a residual), and the sums over rows for gain and bias.
#include "entries.h"
#include "rows.h"

namespace normlab {
namespace NORMLAB_ISA {
namespace {

inline double projection(const RowNorm& a, double rstd) {
    if (a.mode == RowMode::layer) return 1.0 / (double)a.width;
    if (a.mode == RowMode::rms) return 1.0 / (double)a.partial;
    return rstd == 1.0 / a.eps ? 0.0 : 1.0;  // clamped: |x| <= eps, the length is a constant there
}

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

NORMLAB_BY_DTYPE(row_backward, RowNorm, backward)

}  // namespace NORMLAB_ISA
}  // namespace normlab
