// Row norms forward: the residual sum if there is one, the statistic of each row, and y.
#include "entries.h"
#include "rows.h"

namespace normlab {
namespace NORMLAB_ISA {
namespace {

inline double row_rstd(const RowNorm& a, double square) {
    if (a.mode != RowMode::scale) return 1.0 / sqrt(square + a.eps);
    const double norm = sqrt(square * (double)a.width);
    return 1.0 / (norm > a.eps ? norm : norm == norm ? a.eps : norm);
}

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

}  // namespace

NORMLAB_BY_DTYPE(row_forward, RowNorm, forward)

}  // namespace NORMLAB_ISA
}  // namespace normlab
