"""The checks C1 to C14 as functions of a model; each raises `Broken` with what differs and by how much.

C9, full attention without a slot is the teacher, concerns no memory and is not here. Models are float64, as
`tiny` makes them, two layers deep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from ..describe import PER_TOKEN, state_bytes
from ..hf import AnchorForCausalLM, StateCache
from ..plan import ModelShape
from .tiny import VOCAB, restart, tokens

LENGTH = 23
SPLITS = ([1] * LENGTH, [LENGTH - 1, 1], [1, LENGTH - 1], [4, 3, 10, 6])


class Broken(AssertionError):
    """A memory does not keep what every memory must keep."""


def near(a: Tensor, b: Tensor, tolerance: float = 1e-10, what: str = "") -> None:
    """Raise Broken unless a and b have one shape, are finite, and agree, absolutely and relatively."""
    a, b = a.detach(), b.detach()
    _hold(a.shape == b.shape, f"{what}: {tuple(a.shape)} against {tuple(b.shape)}")
    _hold(bool(torch.isfinite(a).all()) and bool(torch.isfinite(b).all()), f"{what}: not finite")
    worst = float(((a - b).abs() / (1 + b.abs())).max()) if a.numel() else 0.0
    _hold(worst <= tolerance, f"{what}: differs by {worst:.2e}")


def _hold(true: bool, said: str) -> None:
    if not true:
        raise Broken(said)


def logits_of(model: AnchorForCausalLM, ids: Tensor, **options: Any) -> Tensor:
    with torch.no_grad():
        return model(ids, **options).logits


def read_by(model: AnchorForCausalLM, ids: Tensor, widths: Sequence[int], **options: Any) -> tuple[Tensor, StateCache]:
    """Logits of several calls in a row, and the cache."""
    cache, parts, done = model.new_cache(), [], 0
    for width in widths:
        parts.append(logits_of(model, ids[:, done : done + width], cache=cache, **options))
        done += width
    return torch.cat(parts, 1), cache


def prefix(model: AnchorForCausalLM) -> None:
    """C1: what follows a text changes nothing of what was said about it."""
    ids = tokens(2, LENGTH)
    whole = logits_of(model, ids)
    for length in (1, 4, 5, 6, 10, 11, 17):
        near(logits_of(model, ids[:, :length]), whole[:, :length], what=f"the first {length} tokens alone")


def split(model: AnchorForCausalLM) -> None:
    """C2, C3: token by token, or in any other pieces, a text is the same text, and so is what follows it."""
    ids, more = tokens(2, LENGTH), tokens(2, 7, seed=9)
    whole = logits_of(model, torch.cat([ids, more], 1))
    for widths in SPLITS:
        parts, cache = read_by(model, ids, widths)
        what = "token by token" if len(widths) == LENGTH else f"in pieces of {widths}"
        near(parts, whole[:, :LENGTH], what=what)
        near(logits_of(model, more, cache=cache), whole[:, LENGTH:], what=f"what follows a text read {what}")


def gradient(model: AnchorForCausalLM) -> None:
    """C4: along a random direction the loss rises as its gradient says, through every write."""
    generator = torch.Generator().manual_seed(5)
    weights = torch.randn(1, LENGTH, VOCAB, generator=generator, dtype=torch.float64)
    leaves = {**model.memory_parameters(), "k_proj": model.backbone.model.layers[0].self_attn.k_proj.weight}
    ways = [1e-6 * torch.randn(leaf.shape, generator=generator, dtype=torch.float64) for leaf in leaves.values()]
    loss = (model(tokens(1, LENGTH)).logits * weights).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    slopes = [0.0 if grad is None else float((grad * way).sum()) for grad, way in zip(grads, ways, strict=True)]
    moves = list(zip(leaves.values(), ways, slopes, strict=True))
    if not _rises(model, weights, moves):
        wrong = [name for name, move in zip(leaves, moves, strict=True) if not _rises(model, weights, [move])]
        raise Broken(f"the loss does not rise as the gradient says along {', '.join(wrong) or 'all together'}")


def _rises(model: AnchorForCausalLM, weights: Tensor, moves: list[tuple[Tensor, Tensor, float]]) -> bool:
    """Whether the loss changes by the slopes when every leaf takes its step; twice the step, from both sides."""
    found, slope = [], sum(slope for *_, slope in moves)
    kept = [leaf.data for leaf, *_ in moves]
    try:
        for sign in (1, -1):
            for (leaf, way, _), at in zip(moves, kept, strict=True):
                leaf.data = at + sign * way
            found.append((logits_of(model, tokens(1, LENGTH)) * weights).sum())
    finally:
        for (leaf, *_), at in zip(moves, kept, strict=True):
            leaf.data = at
    return abs(float(found[0] - found[1]) / 2 - slope) < 1e-4 * (1e-6 + abs(slope))


def causal(model: AnchorForCausalLM) -> None:
    """C5: another token changes nothing before it, to the bit."""
    ids = tokens(1, LENGTH)
    before = logits_of(model, ids)
    for j in (0, 5, 11, LENGTH - 1):
        other = ids.clone()
        other[0, j] = (other[0, j] + 1) % VOCAB
        changed = (logits_of(model, other) != before).any(-1)[0]
        _hold(not bool(changed[:j].any()) and bool(changed[j]), f"token {j} is seen by an earlier one, or by none")


def padding(model: AnchorForCausalLM) -> None:
    """C6: masked tokens anywhere leave the rest, and the state, as they were; rows do not meet."""
    text, mask, ids = tokens(1, 13, seed=13), torch.ones(2, 19), tokens(2, 19)
    mask[0, [0, 1, 7, 11, 12, 18]] = 0
    ids[0, mask[0].bool()] = text
    cache = model.new_cache()
    padded = logits_of(model, ids, attention_mask=mask, cache=cache)
    near(padded[0, mask[0].bool()][None], logits_of(model, text), what="a padded row")
    near(padded[1:], logits_of(model, ids[1:]), what="the row beside a padded one")
    more = tokens(1, 4, seed=9)
    rest = logits_of(model, more.expand(2, -1), cache=cache)[:1]
    near(rest, logits_of(model, torch.cat([text, more], 1))[:, 13:], what="what follows a padded row")


def packing(model: AnchorForCausalLM) -> None:
    """C7: several texts in one row, each started afresh, are several rows."""
    texts = [tokens(1, length, seed=length) for length in (13, 1, 12)]
    starts = torch.zeros(1, 26, dtype=torch.bool)
    starts[0, [0, 13, 14]] = True
    packed = logits_of(model, torch.cat(texts, 1), document_starts=starts)
    near(packed, torch.cat([logits_of(model, text) for text in texts], 1), what="packed texts")


def size(model: AnchorForCausalLM) -> None:
    """C8: the bytes that are held are those of the formula, and do not grow with the text."""
    model = deepcopy(model).float()
    expected = state_bytes(model.plan, ModelShape.from_config(model.backbone.config, 4))
    growing, most = expected.pop(PER_TOKEN), expected.pop("chunk buffer")
    for length in (31, 91):
        _, cache = read_by(model, tokens(1, length), [length])
        held = cache.nbytes()
        _hold(held.pop("full attention") == growing * length, f"{length} tokens of full attention")
        _hold((buffered := held.pop("chunk buffer")) <= most, f"chunk buffer: {buffered} bytes, said {most}")
        for part, said in expected.items():
            _hold(held[part] == said, f"{part}: {held[part]} bytes after {length} tokens, said {said}")


def cache(model: AnchorForCausalLM) -> None:
    """C11: a state is restored, reordered and reset row by row."""
    ids, more = tokens(2, LENGTH), tokens(2, 6, seed=8)
    _, state = read_by(model, ids, [LENGTH])
    kept = state.snapshot()
    first = logits_of(model, more, cache=state)
    state.restore(kept)
    _hold(torch.equal(logits_of(model, more, cache=state), first), "a restored state answers otherwise")
    state.restore(kept)
    state.reorder_cache(torch.tensor([1, 0]))
    near(logits_of(model, more.flip(0), cache=state), first.flip(0), what="reordered rows")
    state.restore(kept)
    state.reset(torch.tensor([0]))
    after = logits_of(model, more, cache=state)
    near(after[:1], logits_of(model, more[:1]), what="a row that was reset")
    near(after[1:], first[1:], what="the row beside one that was reset")


def drift(model: AnchorForCausalLM) -> None:
    """C12: a bf16 backbone with an fp32 state stays near, the last of 768 tokens no worse than the first.

    A memory that chooses whole tokens may choose others in bf16, and then drifts without being wrong.
    """
    rough, own, ids = deepcopy(model), set(model.memory_parameters()), tokens(1, 768)
    for name, parameter in rough.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if name in own else torch.bfloat16)
    ours, theirs = (logits_of(m, ids).double() for m in (rough, model))
    _hold(bool(torch.isfinite(ours).all()), "not finite in bf16")
    early, late = (
        float((ours - theirs)[:, part].norm() / theirs[:, part].norm()) for part in (slice(128), slice(-128, None))
    )
    _hold(late < 0.25 and late < 2 * early + 0.02, f"bf16 is off by {early:.3f} early and {late:.3f} late in a text")


def learning(model: AnchorForCausalLM) -> None:
    """C10, C13: from its start, every parameter of the memory gets a gradient within 20 steps, and moves."""
    model, ids = deepcopy(model).float(), tokens(2, LENGTH)
    restart(model)
    own = model.memory_parameters()
    model.requires_grad_(False)
    before = {name: p.requires_grad_(True).detach().clone() for name, p in own.items()}
    seen = dict.fromkeys(own, False)
    optimiser = torch.optim.AdamW(own.values(), lr=1e-2) if own else None
    for _ in range(20 if optimiser else 0):
        optimiser.zero_grad()
        model(ids, labels=ids).loss.backward()
        seen = {n: seen[n] or bool(p.grad is not None and p.grad.any()) for n, p in own.items()}
        optimiser.step()
    still = [name for name in own if not seen[name] or torch.equal(own[name], before[name])]
    _hold(not still, f"{', '.join(still)}: no gradient in 20 steps")


def generation(model: AnchorForCausalLM) -> None:
    """C14: what is generated from the state is the argmax of one forward pass over it."""
    prompt = tokens(2, 9)
    options = {"attention_mask": torch.ones_like(prompt), "pad_token_id": 0}  # what else generate guesses, and says so
    made = model.generate(prompt, max_new_tokens=12, do_sample=False, **options)
    _hold(torch.equal(logits_of(model, made)[:, 8:-1].argmax(-1), made[:, 9:]), "generated tokens differ")


CHECKS: dict[str, Callable[[AnchorForCausalLM], None]] = {
    "C1 prefix": prefix,
    "C2 C3 split": split,
    "C4 gradient": gradient,
    "C5 causal": causal,
    "C6 padding": padding,
    "C7 packing": packing,
    "C8 bytes": size,
    "C11 cache": cache,
    "C12 drift": drift,
    "C10 C13 learning": learning,
    "C14 generation": generation,
}
