"""The SwiGLU fast-weight network, its hand-written inner gradient, and the ways to apply an update.

Shapes: B rows, H state heads, N tokens, d key and value width, h hidden width.
w0, w2: [B, H, h, d]; w1: [B, H, d, h]; keys, values: [B, H, N, d]; step sizes e0, e1, e2: [B, H, N, 1].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Five steps of a quintic iteration whose result has singular values in [0.97, 1.15] (LaCT, arXiv 2505.23884).
NEWTON_SCHULZ = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


class Weights(NamedTuple):
    """The three matrices of one SwiGLU network, or an update of them."""

    w0: Tensor
    w1: Tensor
    w2: Tensor


def apply(w: Weights, u: Tensor) -> Tensor:
    """f_W(u) = W1 (silu(W0 u) * (W2 u)): [B, H, N, d]."""
    gate = F.silu(u @ w.w0.transpose(-1, -2))
    return (gate * (u @ w.w2.transpose(-1, -2))) @ w.w1.transpose(-1, -2)


def descent(w: Weights, k: Tensor, v: Tensor, steps: tuple[Tensor, Tensor, Tensor], loss: str) -> Weights:
    """Minus the gradient of the inner loss at w, each token and matrix with its own step size.

    loss "dot": -sum <f(k), v>; "squared": sum ||f(k) - v||^2 / 2 (`anchor.md` 1.3; LaCT, arXiv 2505.23884).
    """
    z0, z2 = k @ w.w0.transpose(-1, -2), k @ w.w2.transpose(-1, -2)
    s = torch.sigmoid(z0)
    silu = z0 * s
    hidden = silu * z2
    if loss == "squared":
        v = v - hidden @ w.w1.transpose(-1, -2)
    p = v @ w.w1
    e0, e1, e2 = steps
    return Weights(
        (p * z2 * s * (1 + z0 * (1 - s)) * e0).transpose(-1, -2) @ k,
        (v * e1).transpose(-1, -2) @ hidden,
        (p * silu * e2).transpose(-1, -2) @ k,
    )


def orthogonalise(m: Tensor) -> Tensor:
    """The nearest matrix with all singular values near 1, by five Newton-Schulz steps, in fp32 or wider.

    Scale-free above a Frobenius norm of about 1e-6; zero stays zero.
    """
    x = m if m.dtype == torch.float64 else m.float()
    tall = x.shape[-2] > x.shape[-1]
    x = x.transpose(-1, -2) if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for a, b, c in NEWTON_SCHULZ:
        gram = x @ x.transpose(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.transpose(-1, -2) if tall else x).to(m.dtype)


def limit_norm(update: Tensor, reference: Tensor, limit: float) -> Tensor:
    """The update, no longer in Frobenius norm than `limit` times the reference, per head; its direction is kept."""
    longest = limit * reference.norm(dim=(-2, -1), keepdim=True)
    return update * (longest / update.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-12)).clamp(max=1.0)


def scale_rows(w: Tensor, norms: Tensor) -> Tensor:
    """w with each row scaled to the norm in norms [..., rows, 1]."""
    return w * (norms / w.norm(dim=-1, keepdim=True).clamp(min=1e-12))
