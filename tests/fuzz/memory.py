"""Tensors in awkward places: with gaps, overlapping, at the edge of a page that must not be touched, without memory at all.

Memory around and between the cells of a tensor holds 0xFF, which is NaN in every floating dtype: what reads it shows it.
"""

from __future__ import annotations

import ctypes
import mmap
import random

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

MARGIN = 32  # values around a tensor on the heap
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def beside_a_wall(size: int, behind: bool) -> Tensor:
    """``size`` bytes that end where a page without any access begins (or begin where such a page ends)."""
    page = mmap.PAGESIZE
    room = -(-size // page) * page
    area = mmap.mmap(-1, room + page)  # unmapped when the last tensor that shows it is gone
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    if _libc.mprotect(start + room if behind else start, page, 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    return torch.frombuffer(area, dtype=torch.uint8, count=size, offset=room - size if behind else page)


def dense_strides(shape: tuple[int, ...], order: list[int] | None = None, gaps: list[int] | None = None) -> list[int]:
    """Strides for axes stored in this order (last: fastest), ``gaps[axis]`` unused values after each step of the axis."""
    strides, span = [0] * len(shape), 1
    for axis in reversed(order or range(len(shape))):
        strides[axis] = span + (gaps[axis] if gaps else 0)
        span = strides[axis] * max(shape[axis], 1)
    return strides


def draw_strides(kind: str, shape: tuple[int, ...], rng: random.Random) -> list[int]:
    dims = len(shape)
    if kind == "rows apart":
        return dense_strides(shape, gaps=[rng.randint(1, 5) if a == dims - 2 or dims == 1 else 0 for a in range(dims)])
    if kind == "gaps":
        return dense_strides(shape, gaps=[rng.randint(0, 3) for _ in shape])
    if kind == "permuted":
        order = list(range(dims))
        if dims >= 3 and rng.random() < 0.5:
            order = [0, *order[2:], 1]  # channels_last
        else:
            rng.shuffle(order)
        return dense_strides(shape, order)
    if kind == "expanded":
        strides = dense_strides(shape)
        for axis in rng.sample(range(dims), rng.randint(1, dims)) if dims else []:
            strides[axis] = 0
        return strides
    if kind == "overlapping":
        return [rng.randint(1, 2) for _ in shape]
    return dense_strides(shape)


def cells(shape: tuple[int, ...], strides: list[int]) -> Tensor:
    """Where each value lies, counted in values from the first."""
    index = torch.zeros(shape, dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        index += (torch.arange(size) * stride).view([-1 if a == axis else 1 for a in range(len(shape))])
    return index


class Placed:
    """A tensor, the memory it lies in, and what that memory held at first."""

    def __init__(self, values: Tensor, strides: list[int] | None = None, place: str = "heap"):
        shape = tuple(values.shape)
        strides = dense_strides(shape) if strides is None else strides
        index = cells(shape, strides)
        span = int(index.max()) + 1 if values.numel() else 0
        lead = 0
        if place == "heap" or span == 0:
            lead = MARGIN
            memory = torch.empty((span + 2 * MARGIN) * values.element_size(), dtype=torch.uint8)
        else:
            memory = beside_a_wall(span * values.element_size(), place == "wall behind")
        memory.fill_(255)
        base = memory.view(values.dtype)
        base[index.flatten() + lead] = values.flatten()
        self.tensor = base.as_strided(shape, strides, lead)
        self._memory, self._before = memory, memory.clone()
        self._cells = index.flatten() + lead
        self._itemsize = values.element_size()

    def untouched(self, writable: bool = False) -> bool:
        """Is the memory as it was? ``writable``: apart from the tensor's own cells."""
        if not writable:
            return torch.equal(self._memory, self._before)
        now, before = (m.view(-1, self._itemsize).clone() for m in (self._memory, self._before))
        now[self._cells], before[self._cells] = 0, 0
        return torch.equal(now, before)


def without_storage(values: Tensor) -> Tensor:
    """Shape and dtype as before, memory given back: what FSDP does to parameters between uses."""
    t = values.clone()
    t.untyped_storage().resize_(0)
    return t


def short_storage(values: Tensor) -> Tensor:
    """Shape and dtype as before, of the memory a byte given back."""
    t = values.clone()
    t.untyped_storage().resize_(t.untyped_storage().nbytes() - 1)
    return t


class Wrapped(torch.Tensor):
    """A tensor without memory of its own, as quantized and distributed ones are: it hands every op to another."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: Tensor):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        own = {id(t.inner): t for t in tree_leaves((args, kwargs)) if isinstance(t, cls)}
        args, kwargs = tree_map(lambda t: t.inner if isinstance(t, cls) else t, (args, kwargs or {}))
        result = function(*args, **kwargs)
        # an op in place hands back what it was given
        return tree_map(lambda t: own[id(t)] if id(t) in own else cls(t) if isinstance(t, Tensor) else t, result)


class Named(torch.Tensor):
    """A subclass that changes nothing."""


def plain(t: Tensor) -> Tensor:
    """The values alone: an ordinary dense copy."""
    t = t.detach()
    if isinstance(t, Wrapped):
        t = t.inner
    t = t.as_subclass(torch.Tensor)
    if t.layout != torch.strided:
        t = t.to_dense()
    return t.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
