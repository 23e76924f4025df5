"""Bytes of the tensors that are alive, counted as they come and go; no allocator's habits are in the figure."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """`now`: bytes held by tensors made inside the block; `most`: the largest `now` since `restart`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.held: dict[int, Any] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given:
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.held:
            self.held[key] = weakref.ref(storage, lambda _: self._drop(key, size))
            self.now += size
            self.most = max(self.most, self.now)

    def _drop(self, key: int, size: int) -> None:
        self.now -= size
        del self.held[key]

    def restart(self) -> None:
        self.most = self.now
