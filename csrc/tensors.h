// Looking into a torch tensor without torch's headers: the C table that DLPack 1.3 puts on the tensor type
// (`__dlpack_c_exchange_api__`). The layout below is that table's binary interface; a tensor is looked at, never held.
// A look costs about a tenth of asking the Python object for address, dtype, device and shape one after the other, which
// at small sizes is what a norm's time goes to. Older torch has no table: kernels/cpu.py then asks in Python.
#pragma once
#include <Python.h>

#include <cstring>

#include "kernels.h"

namespace normlab {

class Tensors {
public:
    struct Dense {  // an ordinary dense tensor on the CPU
        char* data;
        int64_t size, last;  // values in all, along the last axis
        DType dtype;
        int32_t axes;
        const int64_t* shape;  // the tensor's own: valid while it is
        bool like(const Dense& other) const {
            return dtype == other.dtype && axes == other.axes && !memcmp(shape, other.shape, (size_t)axes * sizeof(int64_t));
        }
    };

    // `capsule`: the table. False when this is not a version we know, or it cannot look.
    bool use(PyObject* capsule) {
        const Table* found = (const Table*)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (!found) PyErr_Clear();
        table_ = found && found->major == 1 && found->look ? found : nullptr;
        return table_;
    }

    // False when the object is no dense CPU tensor of a dtype the kernels know.
    bool look(PyObject* object, Dense& out) const {
        View v;
        if (!table_ || table_->look(object, &v) != 0) {
            PyErr_Clear();
            return false;
        }
        if (v.device_type != 1 || v.lanes != 1 || v.ndim < 1) return false;  // 1: the CPU
        if (v.code == 2 && v.bits == 32) out.dtype = DType::f32;             // 2: IEEE floating point
        else if (v.code == 4 && v.bits == 16) out.dtype = DType::bf16;       // 4: bfloat16
        else if (v.code == 2 && v.bits == 64) out.dtype = DType::f64;
        else if (v.code == 2 && v.bits == 16) out.dtype = DType::f16;
        else return false;
        out.last = v.shape[v.ndim - 1];
        out.size = 1;
        for (int32_t d = v.ndim; d-- > 0;) {
            if (v.strides && v.shape[d] != 1 && v.strides[d] != out.size) return false;
            out.size *= v.shape[d];
        }
        if (!v.data && out.size) return false;  // a tensor without memory of its own: for kernels null means "none"
        out.data = (char*)v.data + v.byte_offset;
        out.axes = v.ndim;
        out.shape = v.shape;
        return true;
    }

private:
    struct View {
        void* data;
        int32_t device_type, device_id, ndim;
        uint8_t code, bits;
        uint16_t lanes;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    };
    struct Table {
        uint32_t major, minor;
        void* older;
        void *allocate, *from_object, *to_object;
        int (*look)(void* object, View* out);  // 0, or -1 with a Python error set
        void* stream;
    };
    const Table* table_ = nullptr;
};

}  // namespace normlab
