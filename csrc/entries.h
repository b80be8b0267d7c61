// An entry of the table: one function, whose instance the dtype picks.
#pragma once
#include "pack.h"

#define NORMLAB_BY_DTYPE(name, Arguments, pass)             \
    void name(const Arguments& a) {                         \
        switch (a.dtype) {                                  \
            case DType::f32: return pass<float>(a);         \
            case DType::f64: return pass<double>(a);        \
            case DType::bf16: return pass<bf16>(a);         \
            case DType::f16: return pass<f16>(a);           \
        }                                                   \
    }
