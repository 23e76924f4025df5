"""Read maps: what a reader does to the answer of a shared state, a stretch and then a rotation, per head.

Each starts as the identity. Shapes: H query heads, d head width, r planes. (Anchor, arXiv 2611.04327, Figures 8, 11.)
"""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor

from ..plan import ReadMap


class LearnedMap(nn.Module):
    """A d x d matrix per head. Without gradients it is kept together with the parameter values it was made from."""

    def __init__(self) -> None:
        super().__init__()
        self._memo: tuple[list[Tensor], Tensor] | None = None

    def matrix(self) -> Tensor:
        """[H, d, d]; applied as matrix @ answer."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Back to the identity."""
        raise NotImplementedError

    def forward(self, m: Tensor) -> Tensor:
        """[B, H, T, d] from [B, H, T, d]."""
        return m @ self._current().to(m.dtype).transpose(-1, -2)

    def _current(self) -> Tensor:
        if torch.is_grad_enabled() or any(p.is_inference() for p in self.parameters()):
            return self.matrix()
        now = list(self.parameters())
        # By value: a write through `.data`, as optimisers and averaging do, moves neither address nor version.
        if self._memo is None or not all(_same(a, b) for a, b in zip(self._memo[0], now, strict=True)):
            self._memo = ([p.detach().clone() for p in now], self.matrix())
        return self._memo[1]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


class DenseMap(LearnedMap):
    """I + D with a free D per head: nothing keeps it a stretch and a proper rotation, so watch its determinant."""

    def __init__(self, heads: int, dim: int):
        super().__init__()
        self.change = nn.Parameter(torch.zeros(heads, dim, dim))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.change)

    def matrix(self) -> Tensor:
        return torch.eye(self.change.shape[-1], dtype=self.change.dtype, device=self.change.device) + self.change


class PolarMap(LearnedMap):
    """R exp(sym(B)): a symmetric positive definite stretch, then a rotation from a skew generator K = A - A^T.

    "cayley": R = (I - K/2)^-1 (I + K/2), every rotation without an angle of pi. "expm": R = exp(K), every rotation.
    """

    def __init__(self, heads: int, dim: int, kind: str):
        super().__init__()
        self.kind = kind
        self.stretch = nn.Parameter(torch.zeros(heads, dim, dim))
        self.turn = nn.Parameter(torch.zeros(heads, dim, dim))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.stretch)
        nn.init.zeros_(self.turn)

    def matrix(self) -> Tensor:
        wide = torch.promote_types(self.turn.dtype, torch.float32)  # no solve and no matrix exponential below fp32
        stretch, turn = self.stretch.to(wide), self.turn.to(wide)
        generator = turn - turn.transpose(-1, -2)
        positive = torch.linalg.matrix_exp((stretch + stretch.transpose(-1, -2)) / 2)
        return self._rotation(generator) @ positive

    def _rotation(self, generator: Tensor) -> Tensor:
        if self.kind == "expm":
            return torch.linalg.matrix_exp(generator)
        unit = torch.eye(generator.shape[-1], dtype=generator.dtype, device=generator.device)
        return torch.linalg.solve(unit - generator / 2, unit + generator / 2)


class PlaneMap(LearnedMap):
    """A diagonal stretch, then a rotation in r planes: u = exp(b) m, y = u + U (Rot(theta) - I) U^T u.

    U [d, 2r] has orthonormal columns by QR. It learns only once the angles have moved away from zero.
    """

    def __init__(self, heads: int, dim: int, planes: int):
        super().__init__()
        self.log_stretch = nn.Parameter(torch.zeros(heads, dim))
        self.angles = nn.Parameter(torch.zeros(heads, planes))
        self.basis = nn.Parameter(torch.empty(heads, dim, 2 * planes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.log_stretch)
        nn.init.zeros_(self.angles)
        nn.init.normal_(self.basis)

    def matrix(self) -> Tensor:
        wide = torch.promote_types(self.basis.dtype, torch.float32)
        frame = torch.linalg.qr(self.basis.to(wide))[0]
        angles = self.angles.to(wide)
        cos, sin = (angles.cos() - 1).repeat_interleave(2, -1), angles.sin()
        left, right = frame[..., 0::2], frame[..., 1::2]
        turn = (frame * cos[:, None]) @ frame.transpose(-1, -2)
        turn = turn + (right * sin[:, None]) @ left.transpose(-1, -2) - (left * sin[:, None]) @ right.transpose(-1, -2)
        unit = torch.eye(frame.shape[1], dtype=wide, device=frame.device)
        return (unit + turn) * self.log_stretch.to(wide).exp()[:, None, :]


def build_map(spec: ReadMap, heads: int, dim: int) -> nn.Module | None:
    """The map of a plan's `map` entry; None for kind "none"."""
    if spec.kind == "none":
        return None
    if spec.kind == "dense":
        return DenseMap(heads, dim)
    if spec.kind == "planes":
        return PlaneMap(heads, dim, spec.planes)
    return PolarMap(heads, dim, spec.kind)
