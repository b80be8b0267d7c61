// Pointwise stand-ins for normalization: DyT, y = gain * tanh(alpha x) + bias; Derf, y = gain * erf(alpha x + shift) + bias.
//
// float32 and 16-bit types use polynomials (Chebyshev fits made with mpmath, error below 1e-7 everywhere; the
// derivative of tanh comes from the exponential, so it does not cancel when tanh is close to 1); float64 calls libm.
#include "entries.h"
#include "sums.h"

namespace normlab {
namespace NORMLAB_ISA {
namespace {

typedef Lanes<float>::V V;
typedef Lanes<float>::U U;

inline __attribute__((always_inline)) V choose(U mask, V yes, V no) {
    return bitcast<V>((bitcast<U>(yes) & mask) | (bitcast<U>(no) & ~mask));
}
template <class M> inline __attribute__((always_inline)) U as_mask(M m) { return bitcast<U>(m); }
inline __attribute__((always_inline)) V magnitude(V v) { return bitcast<V>(bitcast<U>(v) & 0x7fffffffu); }
inline __attribute__((always_inline)) V with_sign(V v, V sign) {
    return bitcast<V>(bitcast<U>(v) | (bitcast<U>(sign) & 0x80000000u));
}

// exp(x) for x in [-87, 0].
inline __attribute__((always_inline)) V exp_negative(V x) {
    const V magic = 12582912.0f - V{};                      // 1.5 * 2^23: adding it rounds to an integer
    const V n = (x * 1.44269504f + magic) - magic;
    const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
    V p = 0.001392620336f * r + 0.008363194882f;
    p = p * r + 0.0416665545f;
    p = p * r + 0.1666657689f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    typedef int32_t I __attribute__((vector_size(register_bytes)));
    const I exponent = __builtin_convertvector(n, I);
    return p * bitcast<V>((exponent + 127) << 23);
}

struct Curve { V value, slope; };

inline __attribute__((always_inline)) Curve tanh_curve(V u) {
    V a = magnitude(u);
    a = choose(as_mask(a > 40.0f), 40.0f - V{}, a);         // exp(-80); a NaN stays
    const V e = exp_negative(a * -2.0f), one_plus = e + 1.0f;
    const V z = u * u;
    V p = 0.002269501684f * z - 0.008323187058f;
    p = p * z + 0.02176250291f;
    p = p * z - 0.05395846163f;
    p = p * z + 0.1333330015f;
    p = p * z - 0.3333333315f;
    const V near = u + u * (z * p), far = with_sign((1.0f - e) / one_plus, u);
    return {choose(as_mask(a < 0.6f), near, far), 4.0f * e / (one_plus * one_plus)};
}

inline __attribute__((always_inline)) Curve erf_curve(V u) {
    V a = magnitude(u);
    a = choose(as_mask(a > 9.0f), 9.0f - V{}, a);           // exp(-81)
    const V z = u * u;
    V p = 8.387074557e-5f * z - 0.0008147081117f;
    p = p * z + 0.005201456326f;
    p = p * z - 0.02685958812f;
    p = p * z + 0.1128369935f;
    p = p * z - 0.3761263402f;
    p = p * z + 1.128379167f;
    const V b = choose(as_mask(a > 4.1f), 4.1f - V{}, a);   // erf is 1 to float32 from 3.92 on
    V q = 1.606909001e-6f * b - 4.548583964e-5f;
    q = q * b + 0.0005921924846f;
    q = q * b - 0.004738916665f;
    q = q * b + 0.02636478642f;
    q = q * b - 0.1099845065f;
    q = q * b - 0.6319246476f;
    q = q * b - 1.130176826f;
    q = q * b + 0.0003062758486f;
    q = choose(as_mask(a < 0.9f), V{} - 1.0f, q);           // keep the unused side inside exp's range
    const V near = u * p, far = with_sign(1.0f - exp_negative(q), u);
    return {choose(as_mask(a < 0.9f), near, far), 1.128379167f * exp_negative(V{} - a * a)};
}

template <bool erf_form> inline __attribute__((always_inline)) void curve(const Block<float>& u, Block<float>& value, Block<float>& slope) {
    for (int i = 0; i < N; ++i) {
        const Curve c = erf_form ? erf_curve(u.v[i]) : tanh_curve(u.v[i]);
        // A NaN must stay a NaN whichever polynomial it went through.
        const U real = as_mask(u.v[i] == u.v[i]);
        value.v[i] = choose(real, c.value, u.v[i]);
        slope.v[i] = choose(real, c.slope, u.v[i]);
    }
}
template <bool erf_form> inline void curve(const Block<double>& u, Block<double>& value, Block<double>& slope) {
    for (int i = 0; i < N; ++i)
        for (int l = 0; l < Block<double>::W; ++l) {
            const double x = u.v[i][l];
            if (erf_form) {
                value.v[i][l] = erf(x);
                slope.v[i][l] = 1.1283791670955126 * exp(-x * x);
            } else {
                const double e = exp(-2 * fabs(x));
                value.v[i][l] = tanh(x);
                slope.v[i][l] = 4 * e / ((1 + e) * (1 + e));
            }
        }
}

template <class T> struct Scalars {
    typename Compute<T>::type alpha, shift;
    explicit Scalars(const Pointwise& a)
        : alpha((typename Compute<T>::type)get(a.param_dtype, a.alpha, 0)),
          shift(a.shift ? (typename Compute<T>::type)get(a.param_dtype, a.shift, 0) : 0) {}
};

template <class T, bool erf_form> void forward(const Pointwise& a) {
    typedef typename Compute<T>::type C;
    typedef Block<C> Bk;
    const int64_t wide = padded<C>(a.width);
    const Scratch room((size_t)wide * 2 * sizeof(C));
    C *gain = room.as<C>(), *bias = gain + wide;
    unpack<T>(gain, a.param_dtype, a.weight, a.width, 1, 0);
    unpack<T>(bias, a.param_dtype, a.bias, a.width, 0, 0);
    expect_huge(a.y, (size_t)(a.rows * a.width) * sizeof(T));
    const Scalars<T> scalars(a);
    const int64_t per_task = 16384 / a.width > 1 ? 16384 / a.width : 1;
    run_tasks((a.rows + per_task - 1) / per_task, a.rows * a.width, a.threads, [&](int64_t task) {
        const int64_t end = (task + 1) * per_task < a.rows ? (task + 1) * per_task : a.rows;
        for (int64_t row = task * per_task; row < end; ++row) {
            const T* x = (const T*)a.x + row * a.width;
            T* y = (T*)a.y + row * a.width;
            if (a.mask && !a.mask[row]) {
                memset(y, 0, (size_t)a.width * sizeof(T));
                continue;
            }
            each_block<C>(a.width, [&](int64_t j, auto count) __attribute__((always_inline)) {
                Bk value, slope;
                curve<erf_form>(load(x + j, count) * scalars.alpha + scalars.shift, value, slope);
                store(y + j, value * load_same(gain + j) + load_same(bias + j), count);
            });
        }
    });
}

template <class T, bool erf_form> void backward(const Pointwise& a) {
    typedef typename Compute<T>::type C;
    typedef Block<C> Bk;
    ColumnSums<T> sums(a.rows, a.width, true, a.threads);
    const Scratch gains((size_t)sums.wide * sizeof(C)), scalars_of_tasks((size_t)sums.tasks * 2 * sizeof(double));
    C* gain = gains.as<C>();
    unpack<T>(gain, a.param_dtype, a.weight, a.width, 1, 0);
    double* inner = scalars_of_tasks.as<double>();
    expect_huge(a.dx, (size_t)(a.rows * a.width) * sizeof(T));
    const Scalars<T> scalars(a);
    sums.run([&](int64_t t, typename ColumnSums<T>::Task& task) {
        double dalpha = 0, dshift = 0;
        for (int64_t row = sums.begin(t); row < sums.end(t); ++row) {
            const T *x = (const T*)a.x + row * a.width, *grad = (const T*)a.grad + row * a.width;
            T* dx = (T*)a.dx + row * a.width;
            if (a.mask && !a.mask[row]) {
                memset(dx, 0, (size_t)a.width * sizeof(T));
                continue;
            }
            Bk by_x = Bk::all(0), plain = Bk::all(0);
            each_block<C>(a.width, [&](int64_t j, auto count) __attribute__((always_inline)) {
                const Bk v = load(x + j, count), g = load(grad + j, count);
                Bk value, slope;
                curve<erf_form>(v * scalars.alpha + scalars.shift, value, slope);
                task.add_row(j, g, value);
                const Bk du = g * load_same(gain + j) * slope;
                by_x = by_x + du * v;
                plain = plain + du;
                store(dx + j, du * scalars.alpha, count);
            });
            dalpha += (double)horizontal(by_x);
            dshift += (double)horizontal(plain);
            task.next_rows(1);
        }
        inner[2 * t] = dalpha;
        inner[2 * t + 1] = dshift;
    });
    double dalpha = 0, dshift = 0;
    for (int64_t t = 0; t < sums.tasks; ++t) {
        dalpha += inner[2 * t];
        dshift += inner[2 * t + 1];
    }
    if (a.dalpha) put(a.param_dtype, a.dalpha, 0, dalpha);
    if (a.dshift) put(a.param_dtype, a.dshift, 0, dshift);
    sums.write(a.param_dtype, a.dweight, a.dbias);
}

template <class T> void forward_of(const Pointwise& a) { a.erf ? forward<T, true>(a) : forward<T, false>(a); }
template <class T> void backward_of(const Pointwise& a) { a.erf ? backward<T, true>(a) : backward<T, false>(a); }

}  // namespace

NORMLAB_BY_DTYPE(pointwise_forward, Pointwise, forward_of)
NORMLAB_BY_DTYPE(pointwise_backward, Pointwise, backward_of)

}  // namespace NORMLAB_ISA
}  // namespace normlab
