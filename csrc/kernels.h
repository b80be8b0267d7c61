// What the kernels take: plain descriptions with raw pointers. Every instruction set exports the same table.
//
// Decisions:
// - One struct per family, filled by the bindings. Pointers may be null where a field says "or null".
// - Statistics cross the boundary in float64: a float32 mean is too coarse to subtract from values near 1e4.
// - The same bits for any number of threads: work is cut into tasks by the shape alone, and partial sums are
//   merged in task order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>

namespace normlab {

enum class DType : int { f32 = 0, f64 = 1, bf16 = 2, f16 = 3 };

// Row norms: one statistic per row of `width` contiguous values.
//   layer: (x - mean) / sqrt(var + eps)
//   rms:   x / sqrt(mean(x[:partial]^2) + eps)
//   scale: x / max(|x|, eps), one gain for the whole row
enum class RowMode { layer, rms, scale };

struct RowNorm {
    int64_t rows, width;
    int64_t x_stride;        // elements between rows of x; every other tensor is dense
    int64_t partial;         // rms only: how many leading values enter the statistic; else = width
    DType dtype, param_dtype;
    RowMode mode;
    double eps;
    bool offset_gain;        // gain = 1 + weight
    bool round_before_gain;  // round the normalized value to dtype, then apply the gain
    int threads;
    const uint8_t* mask;     // per row, 1 = real; or null. Rows of padding are never read.
    const void* weight;      // param_dtype[width] (scale: [1]); or null
    const void* bias;        // param_dtype[width]; or null
    const void* x;           // the normalized input; with a residual: the old stream
    double* mean;            // [rows]; layer only
    double* rstd;            // [rows]
    // Residual: stream = alpha * x + keep * branch / (1 - drop). Null branch = no residual.
    const void* branch;
    void* stream;            // written by forward; read as the norm's input by backward
    double alpha, drop;
    uint64_t seed;
    // forward
    void* y;
    // backward
    const void* grad;
    const void* grad_stream;  // gradient arriving on the new stream; or null
    void* dx;
    void* dbranch;            // null when it equals dx (alpha = 1, no dropout)
    void* dweight;            // param_dtype; or null
    void* dbias;              // param_dtype; or null
};

// Column norms: `segments` samples of `rows` positions by `channels`, channels last (columns) or first (planes).
// A statistic covers, within a segment, all real rows of `channels / groups` neighbouring channels; with
// `pooled` it also covers all segments.
//   batch: pooled, groups = channels;  instance: groups = channels;  group: groups = G
struct ColumnNorm {
    int64_t segments, rows, channels, groups;
    bool planes;             // memory is (segments, channels, rows) instead of (segments, rows, channels)
    bool pooled;
    bool centered;           // false: the statistic is the mean square about zero (Power)
    bool given;              // mean and var are inputs (evaluation, frozen or running statistics)
    DType dtype, param_dtype;
    double eps;
    bool offset_gain;
    int threads;
    const uint8_t* mask;     // [segments * rows], 1 = real; or null
    const void* weight;      // param_dtype[channels]; or null
    const void* bias;
    const void* x;
    double* mean;            // [sets][groups]; sets = pooled ? 1 : segments
    double* var;             // [sets][groups], biased; mean square when not centered
    double* count;           // [sets], real cells of each statistic; written by forward
    // Running statistics to move by `factor` towards this batch's (pooled, one group per channel, at least two real
    // cells; the variance made unbiased); null = none.
    void* running_mean;
    void* running_var;
    DType running_dtype;
    double factor;
    void* y;
    const void* grad;
    double* sum_grad;        // [sets][channels]: sum of grad; backward_sums writes, backward_apply reads. May be null
    double* sum_grad_xhat;   // [sets][channels]                                         when both run in one call.
    const double* direct;    // backward_apply: dx = direct * grad + along * xhat + offset, each [sets][channels];
    const double* along;     //   null = derive them from the sums
    const double* offset;
    void* dx;
    void* dweight;
    void* dbias;
};

// y = gain * f(alpha * x + shift) + bias, f = tanh (DyT) or erf (Derf); alpha and shift are scalars.
struct Pointwise {
    int64_t rows, width;
    DType dtype, param_dtype;
    bool erf;
    int threads;
    const uint8_t* mask;
    const void* alpha;       // param_dtype[1]
    const void* shift;       // param_dtype[1]; or null
    const void* weight;
    const void* bias;
    const void* x;
    void* y;
    const void* grad;
    void* dx;
    void* dalpha;
    void* dshift;
    void* dweight;
    void* dbias;
};

struct Table {
    void (*row_forward)(const RowNorm&);
    void (*row_backward)(const RowNorm&);
    void (*column_moments)(const ColumnNorm&);         // x -> mean, var, count
    void (*column_forward)(const ColumnNorm&);         // x -> mean, var, count (unless given), y
    void (*column_backward)(const ColumnNorm&);        // sums, then apply
    void (*column_backward_sums)(const ColumnNorm&);
    void (*column_backward_apply)(const ColumnNorm&);
    void (*pointwise_forward)(const Pointwise&);
    void (*pointwise_backward)(const Pointwise&);
};

// What kernels throw when working memory cannot be had; Python sees a MemoryError. Never out of a parallel region: run_tasks
// catches it there and throws it again after it.
struct OutOfMemory : std::bad_alloc {
    size_t bytes;
    char text[80];
    explicit OutOfMemory(size_t wanted);
    const char* what() const noexcept override;
};
[[noreturn]] void out_of_memory(size_t bytes);

// Working memory, uninitialized, aligned to 64 bytes, never null; given back with the object. What fits comes from a stack
// that stays with the thread, so that a call does not pay for fresh pages; anything beyond it is allocated and freed. The
// stack is why objects must end in the reverse order of their beginning, which scopes and members do by themselves.
class Scratch {
public:
    explicit Scratch(size_t bytes);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    template <class P> P* as() const { return (P*)data_; }

private:
    char* data_;
    bool own_;  // allocated, not from the stack
};

// Large fresh outputs cost one page fault per 4 KiB; ask the kernel for huge pages instead, if `huge_pages` says so.
void expect_huge(void* begin, size_t bytes);

}  // namespace normlab
