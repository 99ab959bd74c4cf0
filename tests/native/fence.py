"""Memory with a page behind its end that nothing may touch: an access beyond a buffer ends the process there."""

import mmap
from ctypes import CDLL, addressof, c_char, c_int, c_size_t, c_void_p

import torch
from torch import Tensor

from paceline.model.packed import Packed
from paceline.native.build import library, unit
from paceline.native.structs import CModel


class Fence:
    """Holds one tensor at a time, of at most `size` bytes, which ends where the memory does."""

    def __init__(self, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.memory = mmap.mmap(-1, self.size + mmap.PAGESIZE)
        protect = CDLL(None).mprotect
        protect.argtypes = [c_void_p, c_size_t, c_int]
        end = addressof(c_char.from_buffer(self.memory)) + self.size
        assert protect(end, mmap.PAGESIZE, 0) == 0

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = int(torch.Size(shape).numel())
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=self.size - count * dtype.itemsize).view(
            shape
        )

    def hold(self, tensor: Tensor) -> Tensor:
        return self.room(tuple(tensor.shape), tensor.dtype).copy_(tensor)


class FencedLinear:
    """A packed matrix whose parts, inputs and outputs all lie before a fence."""

    def __init__(self, packed: Packed, rows: int) -> None:
        self.packed, self.c, self.parts = packed, type(packed.c).from_buffer_copy(packed.c), list[Tensor]()
        for name in ("weight", "bias", "scale", "sums"):
            if (part := getattr(packed, name)) is not None:
                self.parts.append(Fence(part.nbytes).hold(part.contiguous()))
                setattr(self.c, name, self.parts[-1].data_ptr())
        self.x, self.out = Fence(rows * self.c.inputs * 4), Fence(rows * self.c.outputs * 4)

    def __call__(self, x: Tensor) -> Tensor:
        it, own = library(), self.packed
        assert it is not None
        x, out = self.x.hold(x), self.out.room((len(x), self.c.outputs), torch.float32)
        kind = 2 if self.c.form else int(own.scale is not None)
        it.paceline_linear(CModel(int8=kind, threads=1, unit=unit(), head=self.c), x.data_ptr(), len(x), out.data_ptr())
        return out.clone()
