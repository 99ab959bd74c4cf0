"""Weights of a mapped file that move into memory of their own behind the first pass.

A pass reads memory in huge pages an eighth faster than a mapped file, but to be given that memory takes a system
longer than to read what is in the file. So the first pass reads the file where it lies, and the weights move while
texts are written; the bits are the same.
"""

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from paceline.model import pages
from paceline.model.packed import Packed, address


class Settling:
    """`groups`: matrices that move together, a layer's. The caller of the passes asks `arrived` between two of them."""

    def __init__(self, groups: Sequence[Sequence[Packed]]) -> None:
        self.groups = groups
        self.left = len(groups)
        """Groups that have not arrived."""
        self.ready = deque[tuple[int, list[Tensor]]]()
        self.thread: threading.Thread | None = None
        self.over = threading.Event()
        """Nobody waits for the rest."""

    def begin(self) -> None:
        """Copy in a thread of its own, unless one does."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._copy, name="paceline-settle", daemon=True)
            self.thread.start()
            atexit.register(stop, weakref.ref(self))

    def stop(self) -> None:
        """Leave the rest where it is, before the process ends: a thread that ends amid PyTorch's code ends it badly."""
        self.over.set()
        if self.thread is not None:
            self.thread.join()

    def _copy(self) -> None:
        for number, group in enumerate(self.groups):
            moved = []
            for it in group:
                if self.over.is_set():
                    return
                moved.append(copied(it.weight))
            self.ready.append((number, moved))

    def arrived(self) -> Iterator[int]:
        """Numbers of the groups whose matrices lie in their new place from now on."""
        while self.ready:
            number, moved = self.ready.popleft()
            for it, weight in zip(self.groups[number], moved):
                before, it.weight, it.c.weight = it.weight, weight, address(weight)
                pages.give_back(before)
            self.left -= 1
            yield number

    def finish(self) -> None:
        """Wait until all are ready."""
        self.begin()
        assert self.thread is not None
        self.thread.join()


def stop(settling: "weakref.ref[Settling]") -> None:
    """Stop the thread of an object, if that still exists."""
    if (it := settling()) is not None:
        it.stop()


def copied(weight: Tensor) -> Tensor:
    """In memory of its own, by this thread alone: NumPy lets the others run meanwhile."""
    flat = weight.reshape(-1).view(pages.rest.dtype)
    into = pages.zeros(len(flat))
    np.copyto(into.numpy(), flat.numpy())
    return into.view(weight.dtype).view(weight.shape)
