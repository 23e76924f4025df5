"""Read maps: the identity at the start, proper rotations and stretches, folding, and the inference memo."""

import pytest
import torch

import slow
from anchorlm.nn.readmap import build_map
from anchorlm.ops import swiglu
from anchorlm.plan import ReadMap
from builders import assert_near, normal, shake

KINDS = ("dense", "cayley", "expm", "planes")


def made(kind, dim=6, heads=2, shaken=0.0, dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        read_map = build_map(ReadMap(kind, 2), heads, dim).to(dtype)
    shake(dict(read_map.named_parameters()), 3, matrix=shaken, vector=shaken)
    return read_map


@pytest.mark.parametrize("kind", KINDS)
def test_the_identity_at_the_start(kind):
    assert_near(made(kind).matrix(), torch.eye(6, dtype=torch.float64).expand(2, -1, -1), 1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_equal_the_formula(kind):
    read_map = made(kind, shaken=0.4)
    m = normal(3, 2, 4, 6).requires_grad_()
    ours = read_map(m)
    theirs = torch.stack(
        [torch.stack([torch.stack([slow.mapped(read_map, h, u) for u in m[b, h]]) for h in range(2)]) for b in range(3)]
    )
    assert_near(ours, theirs, 1e-12)
    leaves, weight = [m, *read_map.parameters()], normal(*ours.shape, seed=9)
    grads = [torch.autograd.grad((out * weight).sum(), leaves) for out in (ours, theirs)]
    for a, b in zip(*grads, strict=True):
        assert_near(a, b, 1e-10)
        assert bool(a.any())


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("kind", ["cayley", "expm"])
def test_a_stretch_then_a_proper_rotation(kind, dtype, tolerance):
    """R is orthogonal with determinant 1, P symmetric and positive: their product is the matrix."""
    read_map = made(kind, dim=32, shaken=0.3, dtype=dtype)
    matrix = read_map.matrix()
    stretch = torch.linalg.matrix_exp((read_map.stretch + read_map.stretch.transpose(-1, -2)) / 2)
    rotation = matrix @ torch.linalg.inv(stretch)
    assert_near(rotation @ rotation.transpose(-1, -2), torch.eye(32, dtype=dtype).expand(2, -1, -1), 20 * tolerance)
    assert_near(torch.linalg.det(rotation), torch.ones(2, dtype=dtype), 20 * tolerance)
    assert bool((torch.linalg.eigvalsh(stretch) > 0).all())
    assert not torch.allclose(rotation, torch.eye(32, dtype=dtype), atol=0.1)


def test_planes_turn_only_their_planes_and_keep_lengths():
    read_map = made("planes", dim=8, shaken=0.5)
    read_map.log_stretch.data.zero_()
    matrix = read_map.matrix()
    assert_near(matrix @ matrix.transpose(-1, -2), torch.eye(8, dtype=torch.float64).expand(2, -1, -1), 1e-12)
    assert torch.linalg.matrix_rank(matrix[0] - torch.eye(8), tol=1e-9) == 4


@pytest.mark.parametrize("kind", ["cayley", "expm"])
def test_the_polar_parts_of_a_planted_map_come_back(kind):
    """Fit nothing: the polar decomposition of the matrix is the stretch and rotation that were put in."""
    read_map = made(kind, dim=16, shaken=0.2)
    u, s, v = torch.linalg.svd(read_map.matrix())
    planted = torch.linalg.matrix_exp((read_map.stretch + read_map.stretch.transpose(-1, -2)) / 2)
    assert_near(v.transpose(-1, -2) @ torch.diag_embed(s) @ v, planted, 1e-6)
    assert_near(u @ v, read_map.matrix() @ torch.linalg.inv(planted), 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_folding_into_w1_equals_mapping_the_answer(kind):
    read_map = made(kind, shaken=0.3)
    w = swiglu.Weights(normal(1, 2, 7, 6, seed=1), normal(1, 2, 6, 7, seed=2), normal(1, 2, 7, 6, seed=3))
    q = normal(1, 2, 5, 6, seed=4)
    folded = w._replace(w1=read_map.matrix() @ w.w1)
    assert_near(swiglu.apply(folded, q), read_map(swiglu.apply(w, q)), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_memo_follows_the_parameters(kind):
    """Without gradients the matrix is kept between calls; every way of changing a parameter must be noticed."""
    read_map, m = made(kind, shaken=0.3), normal(1, 2, 3, 6)

    def stale():
        with torch.no_grad():
            kept = read_map(m)
        return not torch.allclose(kept, read_map(m), atol=1e-12)

    assert not stale()
    with torch.no_grad():
        for p in read_map.parameters():
            p.add_(0.1 * torch.randn_like(p))
    assert not stale()
    read_map.load_state_dict({n: p + 0.1 * torch.randn_like(p) for n, p in read_map.state_dict().items()})
    assert not stale()
    for p in read_map.parameters():
        p.data = p.data + 0.1 * torch.randn_like(p)
    assert not stale()
    for p in read_map.parameters():
        p.data += 0.1 * torch.randn_like(p)
    assert not stale()


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_parameters_are_solved_in_fp32(kind):
    read_map = made(kind, shaken=0.2, dtype=torch.float32).bfloat16()
    matrix = read_map.matrix()
    assert bool(torch.isfinite(matrix.float()).all())
    assert_near(matrix.float(), made_like(read_map), 2e-2)


def made_like(read_map):
    return read_map.float().matrix()
