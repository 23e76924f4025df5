"""Token-by-token loops that say what each operator means. Slow on purpose; every other path is tested against them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..plan import Reach


def attention(q: Tensor, k: Tensor, v: Tensor, reach: Reach, scale: float, rotary=None) -> Tensor:
    """One row, one head, token by token. q, k, v: [T, d] before RoPE; rotary(x [d], position) rotates one vector."""
    turn = rotary or (lambda x, position: x)
    outputs = []
    for t in range(len(q)):
        scores, values = [], []
        for j in range(t + 1):
            place = _place(t, j, reach)
            if place is not None:
                scores.append((turn(q[t], place) * turn(k[j], j)).sum() * scale)
                values.append(v[j])
        weights = torch.softmax(torch.stack(scores), 0)
        outputs.append((weights[:, None] * torch.stack(values)).sum(0))
    return torch.stack(outputs)


def _place(t: int, j: int, reach: Reach) -> int | None:
    """The position of query t as key j sees it, or None where it does not see it."""
    if reach.kind == "full" or (reach.kind == "segment" and j // reach.segment == t // reach.segment):
        return t
    if reach.kind == "window" and t - j < reach.window:
        return t
    if reach.kind == "window" and j < reach.sinks:
        return reach.window + reach.sinks - 1 if t >= reach.window + reach.sinks - 1 else t
    return None


def chunked_memory(initial, update, read, tokens: int, chunk: int, lag: int = 0) -> list:
    """What each token reads, for any rule: read(state, t) with the state after the chunks it may see.

    initial: the state before any token; update(state, first, last): the state after writing tokens first..last-1.
    Token t reads the state after chunks 0 .. t // chunk - lag - 1, or None while nothing is written.
    """
    states = [initial]
    for first in range(0, tokens - chunk + 1, chunk):
        states.append(update(states[-1], first, first + chunk))
    seen = [max(0, t // chunk - lag) for t in range(tokens)]
    return [read(states[n], t) if n else None for t, n in enumerate(seen)]


def swiglu_update(w: dict[str, Tensor], k: Tensor, v: Tensor, steps: Tensor, loss: str) -> dict[str, Tensor]:
    """One chunk for one state head by autograd, one token at a time at the chunk-start weights.

    w: w0, w2 [h, d], w1 [d, h]; k, v: [C, d]; steps: [C, 3] for w0, w1, w2.
    """
    total = {name: torch.zeros_like(value) for name, value in w.items()}
    for t in range(len(k)):
        leaves = {name: value.detach().requires_grad_() for name, value in w.items()}
        out = leaves["w1"] @ (torch.nn.functional.silu(leaves["w0"] @ k[t]) * (leaves["w2"] @ k[t]))
        inner = -(out * v[t]).sum() if loss == "dot" else 0.5 * (out - v[t]).square().sum()
        grads = torch.autograd.grad(inner, [leaves[name] for name in ("w0", "w1", "w2")])
        for i, name in enumerate(("w0", "w1", "w2")):
            total[name] = total[name] - steps[t, i] * grads[i]
    return {name: w[name] + total[name] for name in w}


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
