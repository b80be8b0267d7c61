// The tables of every instruction set, and the two services kernels ask of the process: working memory and huge pages.
// Compiled once, for the baseline machine.
#include "dispatch.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#ifdef NORMLAB_X86
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

#define NORMLAB_DECLARE(isa)                                                                                \
    namespace normlab { namespace isa {                                                                     \
    void row_forward(const RowNorm&); void row_backward(const RowNorm&);                                    \
    void column_moments(const ColumnNorm&); void column_forward(const ColumnNorm&);                         \
    void column_backward(const ColumnNorm&); void column_backward_sums(const ColumnNorm&);                  \
    void column_backward_apply(const ColumnNorm&);                                                          \
    void pointwise_forward(const Pointwise&); void pointwise_backward(const Pointwise&);                    \
    static const Table table = {row_forward, row_backward, column_moments, column_forward, column_backward, \
                                column_backward_sums, column_backward_apply, pointwise_forward, pointwise_backward}; \
    } }

NORMLAB_DECLARE(baseline)
#ifdef NORMLAB_X86
NORMLAB_DECLARE(avx2)
NORMLAB_DECLARE(avx512)
#endif
#ifdef NORMLAB_AVX512BF16
NORMLAB_DECLARE(avx512bf16)
#endif

namespace normlab {

static bool always() { return true; }
#ifdef NORMLAB_X86
static bool has_f16c() {  // by number: the builtins of Clang before 16 do not know the name
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
static bool has_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") && has_f16c();
}
static bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

#ifdef NORMLAB_AVX512BF16
static bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

const Isa isas[] = {
#ifdef NORMLAB_AVX512BF16
    {"avx512bf16", &avx512bf16::table, has_avx512bf16},
#endif
#ifdef NORMLAB_X86
    {"avx512", &avx512::table, has_avx512},
    {"avx2", &avx2::table, has_avx2},
#endif
    {"baseline", &baseline::table, always},
    {nullptr, nullptr, nullptr},
};

const Isa* best_isa() {
    const Isa* isa = isas;
    while (!isa->supported()) ++isa;
    return isa;
}

const Isa* find_isa(const char* name) {
    for (const Isa* isa = isas; isa->name; ++isa)
        if (!strcmp(isa->name, name)) return isa;
    return nullptr;
}

OutOfMemory::OutOfMemory(size_t wanted) : bytes(wanted) {
    snprintf(text, sizeof text, "not enough memory: a kernel needs %zu bytes to work in", wanted);
}
const char* OutOfMemory::what() const noexcept { return text; }
void out_of_memory(size_t bytes) { throw OutOfMemory(bytes); }

// Enough for the sums of 64 tasks over 4096 columns and what goes with them. Only pages that were written to count.
size_t scratch_kept = 5 << 20;
void* (*scratch_allocate)(size_t, size_t) = aligned_alloc;

struct Stack {
    char* base = nullptr;
    size_t size = 0, used = 0;
    ~Stack() { free(base); }
};
static thread_local Stack stack;

Scratch::Scratch(size_t bytes) {
    bytes = (bytes / 64 + 1) * 64;
    Stack& s = stack;
    if (!s.base && scratch_kept) {
        s.base = (char*)scratch_allocate(64, scratch_kept);
        s.size = s.base ? scratch_kept : 0;
    }
    own_ = s.used + bytes > s.size;
    data_ = own_ ? (char*)scratch_allocate(64, bytes) : s.base + s.used;
    if (!data_) out_of_memory(bytes);
    if (!own_) s.used += bytes;
}

Scratch::~Scratch() {
    if (own_) free(data_);
    else stack.used = (size_t)(data_ - stack.base);
}

bool huge_pages = true;

void expect_huge(void* begin, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t huge = 2u << 20;
    if (!huge_pages || bytes < 16 * huge) return;  // smaller blocks malloc keeps and reuses; from 32 MiB on it maps anew, unless told otherwise
    const uintptr_t from = ((uintptr_t)begin + huge - 1) / huge * huge;
    const uintptr_t to = ((uintptr_t)begin + bytes) / huge * huge;
    if (to > from) madvise((void*)from, to - from, MADV_HUGEPAGE);  // advice only; a refusal changes nothing
#else
    (void)begin; (void)bytes;
#endif
}

}  // namespace normlab
