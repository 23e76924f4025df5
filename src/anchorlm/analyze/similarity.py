"""How alike two sets of read-outs are: by their geometry (debiased CKA) and one by one (mean cosine)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import UserError

LEAST = 4  # rows; the estimator divides by n - 3


def debiased_cka(x: Tensor, y: Tensor) -> float:
    """Debiased linear CKA of x [n, p] and y [n, q], rows paired; about 0 for independent data, 1 under rotation.

    It may be slightly negative and is not clipped. Feature form of the unbiased HSIC (arXiv 1905.00414 with the
    estimator of Song et al., 2012), in float64. Raises UserError for fewer than 4 rows or a different number of rows.
    """
    if x.dim() != 2 or y.dim() != 2 or len(x) != len(y):
        raise UserError(f"CKA compares [n, p] with [n, q]; got {tuple(x.shape)} and {tuple(y.shape)}")
    _check_rows(len(x))
    x, y = (_centre(v) for v in (x, y))
    return float(_hsic(x, y) / (_hsic(x, x) * _hsic(y, y)).sqrt())


def cka_matrix(products: Tensor) -> Tensor:
    """Debiased CKA of every pair of R sets, [R, R], from their inner products between rows, [R, n, n], float64.

    The same estimator in kernel form, which costs n^2 a pair whatever the width; NaN where a set has no variance left.
    Raises UserError for fewer than 4 rows.
    """
    _check_rows(products.shape[-1])
    flat = _u_centred(products.double()).flatten(1)
    hsic = flat @ flat.T
    own = hsic.diagonal().clamp(min=0).sqrt()
    return hsic / (own[:, None] * own)


def _check_rows(rows: int) -> None:
    if rows < LEAST:
        raise UserError(f"CKA needs at least {LEAST} rows; got {rows}")


def _u_centred(products: Tensor) -> Tensor:
    """Zero diagonal and, off it, without row and column means as the unbiased estimator counts them."""
    n = products.shape[-1]
    diagonal = torch.eye(n, dtype=torch.bool, device=products.device)
    kernel = products.masked_fill(diagonal, 0.0)
    rows = kernel.sum(-1) / (n - 2)
    whole = kernel.sum((-1, -2)) / ((n - 1) * (n - 2))
    return (kernel - rows[..., None] - rows[..., None, :] + whole[..., None, None]).masked_fill(diagonal, 0.0)


def _centre(x: Tensor) -> Tensor:
    x = x.double()
    return x - x.mean(0)


def _hsic(x: Tensor, y: Tensor) -> Tensor:
    """n (n - 3) times the unbiased estimate, for centred columns."""
    n = len(x)
    own = (x.square().sum(1) * y.square().sum(1)).sum()
    norms = x.square().sum() * y.square().sum()
    return (x.T @ y).square().sum() - n / (n - 2) * own + norms / ((n - 1) * (n - 2))


def mean_cosine(x: Tensor, y: Tensor, heads: int = 1) -> float:
    """Mean cosine of paired rows of x and y [n, heads d], per head, then over heads."""
    x, y = (v.double().unflatten(-1, (heads, -1)) for v in (x, y))
    return float(F.cosine_similarity(x, y, dim=-1).mean(0).mean())
