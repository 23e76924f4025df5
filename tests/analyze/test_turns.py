"""Polar form, planes and angles: what was planted is found; random turns look as the paper says."""

import numpy as np
import pytest
import torch

from anchorlm.analyze.explain.turns import null_angles, polar, rotation_planes, shares
from anchorlm.nn.readmap import PlaneMap, PolarMap

DIM = 12


def frame(seed, columns=DIM):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((DIM, columns)))[0]


def turned(basis, angles):
    """The rotation by angles[p] from column 2p of the basis towards column 2p + 1."""
    block = np.eye(DIM)
    for p, angle in enumerate(angles):
        a, b = 2 * p, 2 * p + 1
        block[a, a] = block[b, b] = np.cos(angle)
        block[b, a], block[a, b] = np.sin(angle), -np.sin(angle)
    return basis @ block @ basis.T


@pytest.mark.parametrize("angles", [[2.5, 1.1, 0.4], [np.pi, 0.7], [0.3], []])
def test_planted_planes_and_stretch_are_recovered(angles):
    basis, stretches = frame(0), np.linspace(0.4, 2.2, DIM)
    axes = frame(1)
    stretch = axes @ np.diag(stretches) @ axes.T
    form = polar(turned(basis, angles) @ stretch)
    np.testing.assert_allclose(form.spectrum, stretches[::-1], atol=1e-10)
    np.testing.assert_allclose(form.stretch, stretch, atol=1e-10)
    planes = rotation_planes(form.rotation)
    np.testing.assert_allclose(planes.angles, [*angles, *[0] * (DIM // 2 - len(angles))], atol=1e-6)
    assert planes.frame.shape == (DIM, 2 * len(angles)) and not planes.reflects
    for p, angle in enumerate(angles):
        planted, found = basis[:, 2 * p : 2 * p + 2], planes.plane(p)
        np.testing.assert_allclose(found @ found.T, planted @ planted.T, atol=1e-6)
        expected = np.cos(angle) * found[:, 0] + np.sin(angle) * found[:, 1]
        np.testing.assert_allclose(form.rotation @ found[:, 0], expected, atol=1e-6)


def test_a_reflection_is_named():
    mirror = np.diag([-1.0, *[1.0] * (DIM - 1)])
    planes = rotation_planes(frame(2) @ mirror @ frame(2).T @ turned(np.eye(DIM)[:, ::-1], [0.9]))
    assert planes.reflects and len(planes.angles) == DIM // 2


def test_the_maps_of_the_package_are_taken_apart():
    torch.manual_seed(0)
    planes = PlaneMap(1, DIM, 2).double()
    with torch.no_grad():
        planes.angles[0] = torch.tensor([1.3, -0.6])
        planes.log_stretch[0] = 0.3 * torch.randn(DIM)
    form = polar(planes.matrix()[0].detach().numpy())
    np.testing.assert_allclose(rotation_planes(form.rotation).angles[:3], [1.3, 0.6, 0], atol=1e-6)
    whole = PolarMap(1, DIM, "cayley").double()
    with torch.no_grad():
        whole.turn[0] = 0.2 * torch.randn(DIM, DIM)
    form = polar(whole.matrix()[0].detach().numpy())
    np.testing.assert_allclose(form.spectrum, 1, atol=1e-10)
    generator = (whole.turn - whole.turn.mT)[0].detach().numpy()
    expected = 2 * np.arctan(np.sort(np.linalg.eigvals(generator / 2).imag)[::-1][: DIM // 2])
    np.testing.assert_allclose(rotation_planes(form.rotation).angles, expected, atol=1e-8)


def test_shares_and_the_null_of_the_paper():
    np.testing.assert_allclose(shares(np.array([2.0, 1.0, 0.0])), [0.8, 1, 1])
    assert shares(np.zeros(3)) is None
    null = null_angles(128, 40, 0)
    assert null.shape == (40, 64) and np.allclose(np.square(null).sum(1), 1)
    leading = np.square(null[:, :5]).sum(1)
    assert abs(leading.mean() - 0.26) < 0.015  # Figure 8 of arXiv 2611.04327
