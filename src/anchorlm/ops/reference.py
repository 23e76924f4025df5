"""Token-by-token loops that say what each operator means. Slow on purpose; every other path is tested against them.

Shapes are those of one row and one head unless said otherwise: T tokens, C tokens of a chunk, d key and value width,
h hidden width of a SwiGLU memory. All loops carry gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..plan import Reach

Matrices = dict[str, Tensor]
NAMES = ("w0", "w1", "w2")


def attention(
    q: Tensor, k: Tensor, v: Tensor, reach: Reach, scale: float, rotary: Callable[[Tensor, int], Tensor] | None = None
) -> Tensor:
    """q, k, v: [T, d] before RoPE; rotary(x [d], position) rotates one vector."""
    turn = rotary or (lambda x, position: x)
    outputs = []
    for t in range(len(q)):
        scores, values = [], []
        for j in range(t + 1):
            place = place_of_query(t, j, reach)
            if place is not None:
                scores.append((turn(q[t], place) * turn(k[j], j)).sum() * scale)
                values.append(v[j])
        outputs.append(_softmax_mean(scores, values, v[t]))
    return torch.stack(outputs)


def _softmax_mean(scores: list[Tensor], values: list[Tensor], like: Tensor) -> Tensor:
    if not scores:
        return torch.zeros_like(like)
    weights = torch.softmax(torch.stack(scores), 0)
    return (weights[:, None] * torch.stack(values)).sum(0)


def place_of_query(t: int, j: int, reach: Reach) -> int | None:
    """The position of query t as key j <= t sees it, or None where it does not see it."""
    if reach.kind == "full":
        return t
    if reach.kind == "segment" and reach.segment is not None and j // reach.segment == t // reach.segment:
        return t
    if reach.kind == "terrace" and reach.window is not None and j // reach.window >= t // reach.window - 1:
        return t
    if reach.kind == "window" and reach.window is not None:
        if t - j < reach.window:
            return t
        if j < reach.sinks:
            return min(t, reach.window + reach.sinks - 1)
    return None


def kept_tokens(rank: Callable[[int, int], float], written: int, chunk: int, count: int) -> list[int]:
    """The tokens that are kept after `written` tokens, in text order; of equal rank the earlier.

    rank(j, newest): what token j is worth once the token `newest` closes a chunk.
    """
    kept: list[int] = []
    for first in range(0, written, chunk):
        newest = first + chunk - 1
        kept = sorted([*kept, *range(first, first + chunk)], key=lambda j: (-rank(j, newest), j))[:count]
    return sorted(kept)


def kept_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    reach: Reach,
    scale: float,
    kept: Callable[[int], list[int]],
    turn: Callable[[Tensor, int], Tensor],
    bias: Tensor,
    compact: int | None,
) -> Tensor:
    """Window, sinks and kept tokens under one softmax. q, k, v: [T, d] before RoPE; kept(t): tokens that stand then.

    bias [T] is added to a kept token's logit. compact: the most tokens kept, which then lie in order right behind the
    window; None leaves them where they were.
    """
    outputs = []
    for t in range(len(q)):
        seen = [(j, place_of_query(t, j, reach)) for j in range(t + 1)]
        scores = [(turn(q[t], place) * turn(k[j], j)).sum() * scale for j, place in seen if place is not None]
        values = [v[j] for j, place in seen if place is not None]
        standing = kept(t)
        for i, j in enumerate(standing):
            if seen[j][1] is not None:
                continue
            key = j if compact is None else compact - len(standing) + i
            query = t if compact is None else compact - 1 + (reach.window or 0)
            scores.append((turn(q[t], query) * turn(k[j], key)).sum() * scale + bias[j])
            values.append(v[j])
        outputs.append(_softmax_mean(scores, values, v[t]))
    return torch.stack(outputs)


def chunked_memory(
    initial: Any,
    update: Callable[[Any, int, int], Any],
    read: Callable[[Any, int], Any],
    tokens: int,
    chunk: int,
    lag: int = 0,
) -> list:
    """What each token reads, for any rule: read(state, t) with the state after the chunks it may see.

    initial: the state before any token; update(state, first, last): the state after writing tokens first..last-1.
    Token t reads the state after chunks 0 .. t // chunk - lag - 1, or None while nothing is written.
    """
    states = [initial]
    for first in range(0, tokens - chunk + 1, chunk):
        states.append(update(states[-1], first, first + chunk))
    seen = [max(0, t // chunk - lag) for t in range(tokens)]
    return [read(states[n], t) if n else None for t, n in enumerate(seen)]


def swiglu(w: Matrices, u: Tensor) -> Tensor:
    """W1 (silu(W0 u) * (W2 u)) for one vector u [d]; w0, w2: [h, d], w1: [d, h]."""
    z = w["w0"] @ u
    return w["w1"] @ (z / (1 + torch.exp(-z)) * (w["w2"] @ u))


def swiglu_descent(w: Matrices, k: Tensor, v: Tensor, steps: Tensor, loss: str) -> Matrices:
    """Minus the gradient of the inner loss, one token at a time at the chunk-start weights.

    k, v: [C, d]; steps: [C, 3], one for each of w0, w1, w2.
    """

    def inner(leaves: Matrices, t: int) -> Tensor:
        out = swiglu(leaves, k[t])
        return -(out * v[t]).sum() if loss == "dot" else 0.5 * (out - v[t]).square().sum()

    return _descent(inner, w, steps)


def mlp(w: Matrices, u: Tensor) -> Tensor:
    """W_{n-1} gelu(... gelu(W_0 u)) for one vector u [d], gelu(z) = z Phi(z)."""
    for layer, weight in enumerate(w.values()):
        u = weight @ (u * (1 + torch.erf(u / 2**0.5)) / 2 if layer else u)
    return u


def mlp_write(
    state: Matrices,
    slow: Matrices,
    k: Tensor,
    v: Tensor,
    steps: Tensor,
    shares: Matrices,
    limit: float,
    begun: Matrices,
) -> Matrices:
    """One chunk of a neural memory: gradient, limit, momentum, forgetting (Titan-Llama, arXiv 2610.19210).

    slow: the learned start, whose names are those of the matrices; shares: "carry" and "forget" [C], either may be
    missing; begun: the weights at which the gradient is taken.
    """

    def inner(leaves: Matrices, t: int) -> Tensor:
        return 0.5 * (mlp(leaves, k[t]) - v[t]).square().sum()

    change = _descent(inner, {name: begun[name] for name in slow}, steps.expand(-1, len(slow)))
    written = {}
    for name, update in change.items():
        update = update * (limit * frobenius(slow[name]) / frobenius(update)).clamp(max=1.0)
        if "carry" in shares:
            update = update + shares["carry"].mean() * state[f"momentum.{name}"]
            written[f"momentum.{name}"] = update
        kept = 1 - shares["forget"].mean() if "forget" in shares else 1.0
        written[name] = kept * state[name] + update
    return written


def _descent(inner: Callable[[Matrices, int], Tensor], w: Matrices, steps: Tensor) -> Matrices:
    """Minus the gradient of inner(w, t), by autograd, summed over tokens t with their steps [C, one for each of w]."""
    leaves = {name: value if value.requires_grad else value.detach().requires_grad_() for name, value in w.items()}
    total = {name: torch.zeros_like(value) for name, value in w.items()}
    for t in range(len(steps)):
        grads = torch.autograd.grad(inner(leaves, t), list(leaves.values()), create_graph=True)
        for i, name in enumerate(w):
            total[name] = total[name] - steps[t, i] * grads[i]
    return total


def swiglu_update(w: Matrices, k: Tensor, v: Tensor, steps: Tensor, loss: str) -> Matrices:
    """The weights after one chunk of plain gradient descent."""
    change = swiglu_descent(w, k, v, steps, loss)
    return {name: w[name] + change[name] for name in w}


def swiglu_write(
    state: Matrices,
    slow: Matrices,
    k: Tensor,
    v: Tensor,
    steps: Tensor,
    carry: Tensor | None,
    options: Any,
    forget: Tensor | None = None,
    begun: Matrices | None = None,
) -> Matrices:
    """One chunk with every option: gradient, momentum, Muon, limit, decay, add, row norm, in this order.

    slow: the learned start; carry: [C] share of the previous update to keep, or None; forget: [C] share of the
    weights to drop, or None; options: a SwigluOptions; begun: the weights at which the gradient is taken, by default
    the state's.
    """
    begun = state if begun is None else begun
    now = {name: _rows_as(begun[name], slow[name]) if options.row_norm == "pre" else begun[name] for name in NAMES}
    change = swiglu_descent(now, k, v, steps, options.loss)
    written = {}
    for name in NAMES:
        update = change[name]
        if carry is not None:
            update = update + carry.mean() * state[f"momentum.{name}"]
            written[f"momentum.{name}"] = update
        if options.muon:
            update = options.muon_step * newton_schulz(update)
        longest = options.limit * frobenius(slow[name])
        if frobenius(update) > longest:
            update = update * longest / frobenius(update)
        weight = (state[name] if forget is None else state[name] * (1 - forget.mean())) + update
        written[name] = _rows_as(weight, slow[name]) if options.row_norm == "post" else weight
    return written


def frobenius(m: Tensor) -> Tensor:
    return m.square().sum().sqrt()


def _rows_as(w: Tensor, like: Tensor) -> Tensor:
    """w with row i at the length of row i of `like`."""
    return torch.stack(
        [row * target.square().sum().sqrt() / row.square().sum().sqrt() for row, target in zip(w, like, strict=True)]
    )


def newton_schulz(m: Tensor) -> Tensor:
    """Singular values pushed towards 1 one by one: the quintic acts on each as s -> a s + b s^3 + c s^5."""
    triples = (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    )
    left, values, right = torch.linalg.svd(m, full_matrices=False)
    values = values / (frobenius(m) + 1e-7)
    for a, b, c in triples:
        values = a * values + b * values**3 + c * values**5
    return left @ torch.diag(values) @ right


def linear_update(state: Tensor, k: Tensor, v: Tensor, step: Tensor) -> Tensor:
    """state [d, d] (values by keys) after adding step_t v_t k_t^T for each token."""
    for t in range(len(k)):
        state = state + step[t] * torch.outer(v[t], k[t])
    return state


def delta_update(state: Tensor, k: Tensor, v: Tensor, step: Tensor) -> Tensor:
    """state [d, d] after the delta rule: each token first subtracts what the state answers to its key."""
    for t in range(len(k)):
        state = state + step[t] * torch.outer(v[t] - state @ k[t], k[t])
    return state


def short_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, N] plus weight [width, N] over the last `width` tokens, the newest last; a text starts on zeros."""
    width = len(weight)
    outputs = []
    for t in range(len(x)):
        total = x[t]
        for i in range(width):
            source = t - (width - 1) + i
            if source >= 0:
                total = total + weight[i] * x[source]
        outputs.append(total)
    return torch.stack(outputs)


def rotate(x: Tensor, position: int, frequencies: Tensor) -> Tensor:
    """Rotary embedding of one vector [d]: halves i and i + d/2 turn by position * frequencies[i]."""
    half = len(x) // 2
    cos, sin = torch.cos(position * frequencies), torch.sin(position * frequencies)
    a, b = x[:half], x[half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin])


def planes(answer: Tensor, frame: Tensor, angles: Sequence[Tensor]) -> Tensor:
    """One vector [d] turned by angles[p] in the plane of columns 2p and 2p + 1 of the orthonormal frame [d, 2r]."""
    for p, angle in enumerate(angles):
        left, right = frame[:, 2 * p], frame[:, 2 * p + 1]
        along, across = answer @ left, answer @ right
        answer = answer + (along * (angle.cos() - 1) - across * angle.sin()) * left
        answer = answer + (along * angle.sin() + across * (angle.cos() - 1)) * right
    return answer
