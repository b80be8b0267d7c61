// What a kernel is given of a torch tensor, and the one place that checks it: no address reaches a kernel by another way.
//
// A tensor is looked at through the C table that DLPack 1.3 puts on the tensor type (`__dlpack_c_exchange_api__`), never held,
// and without torch's headers; the layout below is that table's binary interface. A look costs about a tenth of asking the
// Python object for address, dtype, device and shape one after the other, which at small sizes is what a norm's time goes to.
// Older torch has no table: kernels/cpu.py then sends descriptions, which go through the same checks.
#pragma once
#include <Python.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace normlab {

// A tensor that a kernel must not be given as it is. kernels/cpu.py makes a readable copy and tries once more.
struct Unfit : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// An ordinary tensor on the CPU, with memory behind it.
struct Seen {
    const char* name = nullptr;
    char* data = nullptr;            // null: there is no such tensor
    int64_t size = 0, last = 1;      // values in all, along the last axis
    DType dtype = DType::f32;
    bool boolean = false;            // a mask: dtype says nothing
    int32_t axes = 0;
    const int64_t* shape = nullptr;  // the tensor's own: valid while it is
    const int64_t* strides = nullptr;

    [[noreturn]] void refuse(const std::string& why) const { throw Unfit(std::string(name) + " " + why); }
    // In row-major order without gaps. The stride of an axis of one value says nothing.
    bool dense() const {
        int64_t step = 1;
        for (int32_t d = axes; d-- > 0;) {
            if (size && shape[d] != 1 && strides[d] != step) return false;
            step *= shape[d];
        }
        return true;
    }
    bool shaped(const Seen& other) const {
        return axes == other.axes && !memcmp(shape, other.shape, (size_t)axes * sizeof(int64_t));
    }
};

class Tensors {
public:
    // `capsule`: the table, `plain`: the types whose memory is what they hold, `questions`: what the table does not tell,
    // torch's own methods is_neg, untyped_storage, storage_offset of a tensor and nbytes of a storage.
    // False when the table is not of a version we know, or cannot look.
    bool use(PyObject* capsule, PyObject* plain, PyObject* questions) {
        const Table* found = (const Table*)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (!found) PyErr_Clear();
        table_ = found && found->major == 1 && found->look && PyTuple_Size(questions) == 4 ? found : nullptr;
        if (!table_) return false;
        Py_INCREF(plain); Py_INCREF(questions);  // for as long as the process lives
        plain_ = plain;
        is_neg_ = PyTuple_GetItem(questions, 0);
        untyped_storage_ = PyTuple_GetItem(questions, 1);
        storage_offset_ = PyTuple_GetItem(questions, 2);
        nbytes_ = PyTuple_GetItem(questions, 3);
        return true;
    }

    // The type in which Python sends descriptions: no other tuple is taken for a tensor, and its numbers for an address.
    void take_descriptions(PyObject* type) {
        Py_INCREF(type);
        description_ = type;
    }

    // What is read: floating point, any layout.
    Seen read(const char* name, PyObject* object) { return floating(see(name, object, true)); }
    // What is written: fresh tensors of ours. Buffers of a layer are read as well, and so go by `read`.
    Seen write(const char* name, PyObject* object) { return floating(see(name, object, false)); }
    // Of x's shape without its axis of features.
    Seen mask(PyObject* object, const Seen& x, int32_t features) {
        if (object == Py_None) return {};
        const Seen s = see("mask", object, true);
        if (!s.boolean) s.refuse("is not boolean");
        bool alike = s.axes == x.axes - 1;
        for (int32_t d = 0; alike && d < s.axes; ++d) alike = s.shape[d] == x.shape[d + (d >= features)];
        if (!alike) s.refuse("has another shape than the positions of " + std::string(x.name));
        if (!s.dense()) s.refuse("is not dense");
        return s;
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
    static constexpr int most_axes = 24;  // of a description
    const Table* table_ = nullptr;
    PyObject *plain_ = nullptr, *description_ = nullptr;
    PyObject *is_neg_ = nullptr, *untyped_storage_ = nullptr, *storage_offset_ = nullptr, *nbytes_ = nullptr;
    int64_t room_[16][2][most_axes];  // shapes and strides of the descriptions of one call; only with the GIL held
    int described_ = 0;

    static Seen floating(const Seen& s) {
        if (s.boolean) s.refuse("is not floating point");
        return s;
    }
    bool is_plain(PyObject* object) const {
        for (Py_ssize_t i = 0; i < PyTuple_Size(plain_); ++i)
            if ((PyObject*)Py_TYPE(object) == PyTuple_GetItem(plain_, i)) return true;
        return false;
    }

    [[noreturn]] static void refuse_type(const Seen& s, PyObject* object) {
        std::string type = "?";
        if (PyObject* name = PyObject_GetAttrString((PyObject*)Py_TYPE(object), "__name__")) {
            if (PyObject* bytes = PyUnicode_AsUTF8String(name)) {
                type = PyBytes_AsString(bytes);
                Py_DECREF(bytes);
            }
            Py_DECREF(name);
        }
        PyErr_Clear();
        s.refuse("is a " + type + ", not a plain tensor");
    }

    Seen see(const char* name, PyObject* object, bool read) {
        Seen s;
        s.name = name;
        if ((PyObject*)Py_TYPE(object) == description_) return describe(s, object);
        if (!table_ || !is_plain(object)) refuse_type(s, object);
        View v;
        if (table_->look(object, &v) != 0) {
            PyErr_Clear();
            s.refuse("holds no memory of its own");
        }
        if (v.device_type != 1) s.refuse("is not on the CPU");                   // 1: the CPU
        if (v.lanes != 1) s.refuse("has a dtype the kernels do not know");
        if (v.code == 2 && v.bits == 32) s.dtype = DType::f32;                   // 2: IEEE floating point
        else if (v.code == 4 && v.bits == 16) s.dtype = DType::bf16;             // 4: bfloat16
        else if (v.code == 2 && v.bits == 64) s.dtype = DType::f64;
        else if (v.code == 2 && v.bits == 16) s.dtype = DType::f16;
        else if (v.code == 6 && v.bits == 8) s.boolean = true;                   // 6: boolean
        else s.refuse("has a dtype the kernels do not know");
        s.data = (char*)v.data + v.byte_offset;
        s.axes = v.ndim;
        s.shape = v.shape;
        s.strides = v.strides;
        measure(s);
        if (read && s.size) require_memory(s, v.bits / 8, object);
        if (read && !s.boolean && is_negated(object)) s.refuse("is to be read with the other sign (negative bit)");
        return s;
    }

    // (address, code of the dtype or -1 for boolean, shape, strides), of a tensor that Python has found plain and on the CPU.
    Seen describe(Seen s, PyObject* described) {
        described_ = (described_ + 1) % 16;  // no call has more tensors
        int64_t(&room)[2][most_axes] = room_[described_];
        PyObject *shape = PyTuple_GetItem(described, 2), *strides = PyTuple_GetItem(described, 3);
        if (!strides || PyTuple_Size(shape) > most_axes) s.refuse("has too many axes");
        const long long code = PyLong_AsLongLong(PyTuple_GetItem(described, 1));
        s.data = (char*)PyLong_AsVoidPtr(PyTuple_GetItem(described, 0));
        s.boolean = code < 0;
        s.dtype = (DType)code;
        s.axes = (int32_t)PyTuple_Size(shape);
        for (int32_t d = 0; d < s.axes; ++d) {
            room[0][d] = PyLong_AsLongLong(PyTuple_GetItem(shape, d));
            room[1][d] = PyLong_AsLongLong(PyTuple_GetItem(strides, d));
        }
        s.shape = room[0];
        s.strides = room[1];
        measure(s);
        if (PyErr_Occurred()) { PyErr_Clear(); s.refuse("has a broken description"); }
        if (s.size && !s.data) s.refuse("has no memory (was its storage resized to 0?)");
        return s;
    }

    static void measure(Seen& s) {
        s.size = 1;
        for (int32_t d = 0; d < s.axes; ++d) s.size *= s.shape[d];
        s.last = s.axes ? s.shape[s.axes - 1] : 1;
        static char empty;
        if (!s.size) s.data = &empty;  // for kernels null means "none"; of no values none is read
    }

    // A storage can be resized below the tensors that view it, and then is not asked by torch's operators either.
    void require_memory(const Seen& s, int64_t item, PyObject* object) const {
        int64_t last = 0;  // from the first value to the last; torch has no negative strides
        for (int32_t d = 0; d < s.axes; ++d) last += (s.shape[d] - 1) * s.strides[d];
        PyObject* storage = PyObject_Vectorcall(untyped_storage_, &object, 1, nullptr);
        const int64_t bytes = storage ? number(nbytes_, storage) : -1;
        Py_XDECREF(storage);
        const int64_t before = number(storage_offset_, object) * item, needed = before + (last + 1) * item;
        PyErr_Clear();
        // Zeros without memory have a size, but no address.
        if (bytes <= 0 || (int64_t)(uintptr_t)s.data == before) s.refuse("has no memory (was its storage resized to 0?)");
        if (bytes < needed)
            s.refuse("needs " + std::to_string(needed) + " bytes of a storage that has " + std::to_string(bytes) + " (was it resized?)");
    }
    static int64_t number(PyObject* method, PyObject* object) {
        PyObject* answer = PyObject_Vectorcall(method, &object, 1, nullptr);
        const int64_t n = answer ? PyLong_AsLongLong(answer) : -1;
        Py_XDECREF(answer);
        return n;
    }

    // torch can flip the sign of a view without touching memory; DLPack does not tell.
    bool is_negated(PyObject* object) const {
        PyObject* answer = PyObject_Vectorcall(is_neg_, &object, 1, nullptr);
        const bool negated = answer != Py_False;
        Py_XDECREF(answer);
        PyErr_Clear();
        return negated;
    }
};

}  // namespace normlab
