"""One answer, however it is asked for: family x plan x split x padding x batch x packed documents, in float64.

The answer to a document is what the model says of it alone, unpadded, in one call. Everything else must agree with it,
in its logits and in the state that it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

import builders
from anchorlm.plan import Plan
from builders import FAMILIES, SLOT_KINDS, assert_near, assert_same_state, evicted

LAYERS = 3
KINDS = sorted(set(SLOT_KINDS) - {"planes", "dense", "linear"})


@st.composite
def windows(draw):
    return {"kind": "window", "window": draw(st.integers(1, 9)), "sinks": draw(st.integers(0, 4))}


@st.composite
def plain(draw):
    kind = draw(st.sampled_from(["window", "window", "full", "segment", "none"]))
    if kind == "window":
        return draw(windows())
    return {"kind": kind, "segment": draw(st.integers(1, 9))} if kind == "segment" else {"kind": kind}


@st.composite
def others(draw):
    """A terrace, or a window without positions, perhaps with meta logits."""
    meta = draw(st.integers(0, 2))
    if draw(st.booleans()):
        return {"kind": "terrace", "window": draw(st.integers(1, 5)), "meta": meta}
    return {"kind": "window", "window": draw(st.integers(1, 9)), "meta": meta, "positions": "none"}


@st.composite
def reaches(draw, own=None, most=2):
    """Of one layer: every other time some of its two KV heads have a reach of their own."""
    heads = draw(st.dictionaries(st.integers(0, 1), plain(), max_size=most)) if draw(st.booleans()) else {}
    if own is None and not heads and draw(st.booleans()):
        return draw(others())
    return draw(plain() if own is None else own) | ({"heads": heads} if heads else {})


@st.composite
def slots(draw):
    write = draw(st.integers(0, LAYERS - 1))
    kind = SLOT_KINDS[draw(st.sampled_from(KINDS))]
    read = {write} if evicted(kind) else draw(st.sets(st.integers(write, LAYERS - 1), min_size=1))
    spec = {"chunk": draw(st.integers(1, 7))} | kind
    return spec | {"write": write, "read": sorted(read), "gap": True}


@st.composite
def plans(draw):
    layers = {str(i): draw(reaches()) for i in range(LAYERS)}
    named = {f"s{i}": slot for i, slot in enumerate(draw(st.lists(slots(), min_size=1, max_size=2)))}
    for slot in named.values():
        for layer in slot["read"] if slot.get("rule") == "kept" else ():
            layers[str(layer)] = draw(reaches(windows(), most=1))
    exact = {layer for slot in named.values() if slot.get("rule") == "kept" for layer in slot["read"]}
    for slot in named.values():
        if evicted(slot):
            kind = "window" if slot["write"] in exact else draw(st.sampled_from(["window", "terrace"]))
            layers[str(slot["write"])] = {"kind": kind, "window": draw(st.integers(1, 6))}
    return {"layers": layers, "slots": named}


def model_of(family, plan):
    values = {"hidden_size": 16, "intermediate_size": 16}
    return builders.hybrid(family, Plan.from_dict(plan, LAYERS), LAYERS, teacher_values=values)


@dataclass
class Layout:
    """Rows of columns: each column is one token of a document, or padding (None)."""

    ids: torch.Tensor
    mask: torch.Tensor
    starts: torch.Tensor
    documents: list[list[torch.Tensor]]
    places: list[list[list[int]]]


@st.composite
def layouts(draw):
    """Documents in rows, with padding before, inside and after, all rows of one width."""
    rows = draw(st.integers(1, 3))
    lengths = [draw(st.lists(st.integers(1, 14), min_size=1, max_size=3)) for _ in range(rows)]
    width = max(map(sum, lengths)) + draw(st.sampled_from([0, 0, 1, 6]))
    seed = draw(st.integers(0, 99))
    return build(lengths, width, [draw(st.permutations(range(width))) for _ in range(rows)], seed)


def build(lengths, width, orders, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, builders.VOCAB, (len(lengths), width), generator=generator)
    mask, starts = torch.zeros_like(ids), torch.zeros_like(ids).bool()
    documents, places = [], []
    for row, sizes in enumerate(lengths):
        kept, cut = sorted(orders[row][: sum(sizes)]), 0
        mask[row, kept] = 1
        places.append([])
        for n, size in enumerate(sizes):
            places[row].append(kept[cut : cut + size])
            starts[row, kept[cut]] = n > 0
            cut += size
        documents.append([ids[row, at] for at in places[row]])
    return Layout(ids, mask, starts, documents, places)


def splits(width):
    return st.lists(st.integers(1, width), max_size=4).map(lambda cuts: sorted({*cuts, width}))


@settings(max_examples=150)
@given(family=st.sampled_from(sorted(FAMILIES)), plan=plans(), layout=layouts(), data=st.data())
@torch.no_grad()
def test_one_answer_whatever_the_batch_padding_packing_and_split(family, plan, layout, data):
    model = model_of(family, plan)
    note(f"{family} {plan}\n{layout.mask.tolist()}\n{layout.starts.int().tolist()}")
    cache, parts, done = model.new_cache(), [], 0
    block = data.draw(st.sampled_from([3, 1024]), "block")
    for end in data.draw(splits(layout.ids.shape[1]), "calls end at"):
        part = slice(done, end)
        given_mask = data.draw(st.sampled_from([layout.mask[:, part], layout.mask[:, :end]]), "mask")
        parts.append(
            model(
                layout.ids[:, part], attention_mask=given_mask, document_starts=layout.starts[:, part], cache=cache,
                block=block,
            ).logits
        )  # fmt: skip
        done = end
    logits = torch.cat(parts, 1)
    for row, documents in enumerate(layout.documents):
        for text, at in zip(documents, layout.places[row], strict=True):
            alone = model.new_cache()
            assert_near(logits[row, at], model(text[None], cache=alone).logits[0], 1e-10)
        assert_same_state(cache.state, row, alone.state, 0, model.plan, 1e-10)


@settings(max_examples=30)
@given(family=st.sampled_from(sorted(FAMILIES)), plan=plans(), length=st.integers(1, 23))
@torch.no_grad()
def test_token_by_token_equals_one_call(family, plan, length):
    model, ids = model_of(family, plan), builders.tokens(2, length)
    whole, cache = model.new_cache(), model.new_cache()
    expected = model(ids, cache=whole).logits
    steps = [model(ids[:, t : t + 1], cache=cache).logits for t in range(length)]
    assert_near(torch.cat(steps, 1), expected, 1e-10)
    for row in range(2):
        assert_same_state(cache.state, row, whole.state, row, model.plan, 1e-10)


@settings(max_examples=40)
@given(plan=plans(), length=st.integers(2, 25), data=st.data())
@torch.no_grad()
def test_changing_a_token_leaves_everything_before_it_to_the_bit(plan, length, data):
    model, ids = model_of("llama", plan), builders.tokens(1, length)
    at = data.draw(st.integers(1, length - 1), "changed token")
    other = ids.clone()
    other[0, at] = (other[0, at] + 1) % builders.VOCAB
    before, after = model(ids).logits, model(other).logits
    assert torch.equal(before[:, :at], after[:, :at])
    assert not torch.equal(before[:, at], after[:, at])


class Session:
    """Rows that live through snapshots, reorders and resets, and the texts they should stand for."""

    def __init__(self, model, rows):
        self.model, self.cache = model, model.new_cache()
        self.texts = [torch.empty(0, dtype=torch.long) for _ in range(rows)]
        self.saved = None

    def read(self, width, seed):
        ids = builders.tokens(len(self.texts), width, seed)
        self.model(ids, cache=self.cache)
        self.texts = [torch.cat([text, ids[i]]) for i, text in enumerate(self.texts)]

    def reorder(self, order):
        self.cache.reorder_cache(torch.tensor(order))
        self.texts = [self.texts[i] for i in order]

    def reset(self, rows):
        self.cache.reset(rows)
        self.texts = [text[:0] if i in rows else text for i, text in enumerate(self.texts)]

    def save(self):
        self.saved = (self.cache.snapshot(), list(self.texts))

    def restore(self):
        if self.saved is not None:
            self.cache.restore(self.saved[0])
            self.texts = list(self.saved[1])


ROWS = 3
ACTIONS = st.one_of(
    st.tuples(st.just("read"), st.integers(1, 9), st.integers(0, 99)),
    st.tuples(st.just("reorder"), st.lists(st.integers(0, ROWS - 1), min_size=ROWS, max_size=ROWS)),
    st.tuples(st.just("reset"), st.lists(st.integers(0, ROWS - 1), max_size=ROWS, unique=True)),
    st.tuples(st.just("save")),
    st.tuples(st.just("restore")),
)


@settings(max_examples=50)
@given(family=st.sampled_from(sorted(FAMILIES)), plan=plans(), actions=st.lists(ACTIONS, min_size=3, max_size=8))
@torch.no_grad()
def test_rows_that_were_saved_reordered_and_reset_equal_their_texts(family, plan, actions):
    session = Session(model_of(family, plan), ROWS)
    for name, *values in [("read", 5, 0), *actions, ("read", 4, 1)]:
        getattr(session, name)(*values)
    for row, text in enumerate(session.texts):
        alone = session.model.new_cache()
        session.model(text[None], cache=alone)
        assert_same_state(session.cache.state, row, alone.state, 0, session.model.plan, 1e-10)


@settings(max_examples=15)
@given(family=st.sampled_from(sorted(FAMILIES)), plan=plans(), beams=st.sampled_from([1, 3]), data=st.data())
def test_generated_text_is_the_same_in_a_batch_alone_and_without_a_cache(family, plan, beams, data):
    model = model_of(family, plan)
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=2, max_size=3), "lengths")
    width, texts = max(lengths), [builders.tokens(1, n, seed=n) for n in lengths]
    ids = torch.cat([torch.nn.functional.pad(text, (width - text.shape[1], 0), value=1) for text in texts])
    mask = torch.tensor([[0] * (width - n) + [1] * n for n in lengths])
    options = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 0}
    options |= {"num_beams": beams, "num_return_sequences": beams}
    together = model.generate(ids, attention_mask=mask, **options)[:, width:]
    assert torch.equal(together, model.generate(ids, attention_mask=mask, use_cache=False, **options)[:, width:])
    for row, text in enumerate(texts):
        alone = model.generate(text, attention_mask=torch.ones_like(text), **options)[:, text.shape[1] :]
        assert torch.equal(together[row * beams : (row + 1) * beams], alone)


@settings(max_examples=15)
@given(family=st.sampled_from(sorted(FAMILIES)), plan=plans(), length=st.integers(4, 20), cut=st.integers(1, 19))
def test_gradients_do_not_depend_on_where_a_text_is_cut(family, plan, length, cut):
    """Two calls that pass the state on are one call to back-propagation, checkpointed or not."""
    model, ids, cut = model_of(family, plan).train(), builders.tokens(2, length), min(cut, length - 1)
    weight = builders.normal(2, length, builders.VOCAB)
    grads = []
    for checkpoint, ends in ((False, [length]), (False, [cut, length]), (True, [cut, length])):
        model.zero_grad()
        cache, done, total = model.new_cache(), 0, 0.0
        for end in ends:
            out = model(ids[:, done:end], cache=cache, checkpoint=checkpoint).logits
            total = total + (out * weight[:, done:end]).sum()
            done = end
        total.backward()
        grads.append({n: p.grad for n, p in model.named_parameters()})
    for name, grad in grads[0].items():
        for other in grads[1:]:
            zero = torch.zeros(1, dtype=torch.float64)
            a, b = (zero if g is None else g for g in (grad, other[name]))
            assert_near((a - b) / (1 + a.abs()), torch.zeros_like(a - b), 1e-8, name)
