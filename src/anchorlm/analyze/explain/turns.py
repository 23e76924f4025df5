"""A matrix as a stretch and then a rotation: polar form, planes, angles, and what a random turn would look like.

Shapes: d width, P = d // 2 planes. (Anchor, arXiv 2611.04327, Figures 8 and 11.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TINY = 1e-7  # an eigenvalue this near to 1 turns nothing


@dataclass(frozen=True)
class Polar:
    """matrix = rotation @ stretch. spectrum [d]: eigenvalues of the stretch, largest first."""

    rotation: np.ndarray
    stretch: np.ndarray
    spectrum: np.ndarray


@dataclass(frozen=True)
class Planes:
    """angles [P], largest first, 0 <= angle <= pi; frame [d, 2 m] for the m planes that turn.

    The rotation takes column 2p to cos(angle) column 2p + sin(angle) column 2p + 1. Planes of equal angles are not
    unique. reflects: the determinant is -1, one direction is mirrored, and no plane says that.
    """

    angles: np.ndarray
    frame: np.ndarray
    reflects: bool

    def plane(self, index: int) -> np.ndarray:
        """[d, 2]."""
        return self.frame[:, 2 * index : 2 * index + 2]


def polar(matrix: np.ndarray) -> Polar:
    """Right polar form by SVD in float64: the stretch acts first."""
    left, values, right = np.linalg.svd(np.asarray(matrix, np.float64))
    return Polar(left @ right, right.T @ np.diag(values) @ right, values)


def rotation_planes(rotation: np.ndarray) -> Planes:
    """The planes of an orthogonal matrix [d, d], from its complex eigenvectors: a + ib turns as [a, -b]."""
    values, vectors = np.linalg.eig(rotation)
    turning = np.flatnonzero(values.imag > TINY)
    turning = turning[np.argsort(-np.angle(values[turning]), kind="stable")]
    mirrored = np.flatnonzero((np.abs(values.imag) <= TINY) & (values.real < 0))
    halves = [vectors[:, mirrored[i : i + 2]].real for i in range(0, len(mirrored) - 1, 2)]
    pairs = halves + [np.stack([v.real, -v.imag], 1) for v in vectors[:, turning].T]
    angles = np.zeros(len(rotation) // 2)
    angles[: len(pairs)] = [*[np.pi] * len(halves), *np.angle(values[turning])]
    frame = np.concatenate(pairs, 1) if pairs else np.zeros((len(rotation), 0))
    return Planes(angles, _orthonormal(frame), bool(len(mirrored) % 2))


def _orthonormal(frame: np.ndarray) -> np.ndarray:
    """The frame made exactly orthonormal, the first columns changed the least, none of them flipped."""
    q, r = np.linalg.qr(frame)
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def shares(angles: np.ndarray) -> np.ndarray | None:
    """Share of the squared rotation in the k leading planes, k = 1 .. P; None when nothing turns."""
    squares = np.square(angles)
    return None if squares.sum() < TINY**2 else np.cumsum(squares) / squares.sum()


def null_angles(dim: int, draws: int, seed: int) -> np.ndarray:
    """Angles [draws, P] of Gaussian skew-symmetric generators, largest first, each scaled to squares that sum to 1."""
    noise = np.random.default_rng([seed, dim]).standard_normal((draws, dim, dim))
    skew = noise - noise.transpose(0, 2, 1)
    angles = np.linalg.eigvalsh(1j * skew)[:, ::-1][:, : dim // 2]
    return angles / np.sqrt(np.square(angles).sum(1, keepdims=True))
