"""Standardisation to unit variance that weight decay cannot undo, and the projector around it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from eigenshot.errors import UserError
from eigenshot.networks import Projector, Standardize


@pytest.fixture
def batch() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    scale = torch.logspace(-1, 1, 6, dtype=torch.float64)
    return 3 + scale * torch.randn(32, 6, generator=generator, dtype=torch.float64)


def test_standardize_equals_the_formula(batch: torch.Tensor) -> None:
    x = batch.numpy()
    expected = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-12)
    found = Standardize(6)(batch)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_standardize_does_not_see_the_scale_of_its_input(
    batch: torch.Tensor, dtype: torch.dtype
) -> None:
    x = ((batch - 3) / batch.std(dim=0)).to(dtype)
    standardize = Standardize(6)
    torch.testing.assert_close(standardize(1e-4 * x), standardize(x), rtol=0, atol=1e-3)

    batch_norm = nn.BatchNorm1d(6, affine=False).to(dtype)
    assert (batch_norm(1e-4 * x) - batch_norm(x)).abs().max() > 0.5
    assert batch_norm(1e-4 * x).std(dim=0).min() < 0.1


def test_a_dimension_without_variance_gives_zeros(batch: torch.Tensor) -> None:
    batch[:, 2] = 2.0
    batch.requires_grad_()
    z = Standardize(6)(batch)
    assert torch.equal(z[:, 2], torch.zeros(32, dtype=torch.float64))
    z.square().sum().backward()
    assert batch.grad.isfinite().all()


def test_running_statistics_are_those_of_batch_norm_and_serve_in_eval_mode(
    batch: torch.Tensor,
) -> None:
    # The same eps, so that only the statistics could differ; no momentum: a plain mean.
    standardize = Standardize(6).double()
    batch_norm = nn.BatchNorm1d(6, eps=1e-12, affine=False, momentum=None).double()
    for part in batch.split(8):
        standardize(part)
        batch_norm(part)
    torch.testing.assert_close(standardize.running_mean, batch_norm.running_mean)
    torch.testing.assert_close(standardize.running_var, batch_norm.running_var)

    standardize.eval()
    before = standardize.running_mean.clone()
    torch.testing.assert_close(standardize(batch), batch_norm.eval()(batch))
    assert torch.equal(standardize(batch[:1]), standardize(batch)[:1])
    assert torch.equal(standardize.running_mean, before)

    standardize.train()
    standardize.batches_seen.fill_(50)  # later a moving average, as in batch normalisation
    standardize(batch)
    torch.testing.assert_close(standardize.running_mean, 0.9 * before + 0.1 * batch.mean(dim=0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [True, False])
def test_half_precision_becomes_float32(
    batch: torch.Tensor, dtype: torch.dtype, training: bool
) -> None:
    x = batch.to(dtype)
    standardize = Standardize(6).train(training)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = standardize(x)
    assert z.dtype == torch.float32
    expected = Standardize(6).train(training)(x.double())
    torch.testing.assert_close(z.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_gradient_of_standardize(batch: torch.Tensor, training: bool) -> None:
    standardize = Standardize(6).double().train(training)
    assert torch.autograd.gradcheck(standardize, batch[:5].clone().requires_grad_())


def test_a_step_of_weights_before_a_normalisation_makes_them_longer_and_slower() -> None:
    """Why a first step that is too long is not undone: the weights' direction alone matters."""
    torch.manual_seed(0)
    projector = Projector(6, layers=2, width=5, out_features=4).double()
    features = 100 * torch.randn(16, 6).double()  # beside which the eps of batch norm is nothing
    wanted = torch.randn(16, 4).double()

    def gradient(weight: torch.Tensor) -> torch.Tensor:
        loss = (projector(features) - wanted).square().mean()
        return torch.autograd.grad(loss, weight)[0]

    for layer in (projector.layers[0], projector.layers[3]):
        slope = gradient(layer.weight)
        rows = layer.weight.detach().square().sum(dim=1)
        moved = (layer.weight - 0.1 * slope).detach()
        torch.testing.assert_close(
            moved.square().sum(dim=1), rows + 0.01 * slope.square().sum(dim=1), rtol=1e-8, atol=0
        )
        with torch.no_grad():
            layer.weight.mul_(3)
        torch.testing.assert_close(gradient(layer.weight), slope / 3, rtol=1e-6, atol=1e-12)
        with torch.no_grad():
            layer.weight.div_(3)


def test_running_statistics_carry_no_graph(batch: torch.Tensor) -> None:
    standardize = Standardize(6)
    standardize(batch.requires_grad_())
    assert not standardize.running_mean.requires_grad
    assert not standardize.running_var.requires_grad


@pytest.mark.parametrize("samples", [0, 1])
def test_a_training_batch_too_small_to_have_a_variance_is_refused(samples: int) -> None:
    standardize = Standardize(6)
    with pytest.raises(UserError, match=f"training batch of {samples}"):
        standardize(torch.rand(samples, 6))
    assert torch.equal(standardize.running_mean, torch.zeros(6))


@pytest.mark.parametrize("shape", [(4, 5), (4, 6, 1), (6,)])
def test_standardize_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"expected \(batch, 6\), found \("):
        Standardize(6)(torch.rand(shape))


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
@pytest.mark.parametrize("standardize", [True, False])
def test_projector_has_the_asked_layers(layers: int, standardize: bool) -> None:
    projector = Projector(8, layers=layers, width=16, out_features=12, standardize=standardize)
    linear = [part for part in projector.modules() if isinstance(part, nn.Linear)]
    sizes = [8, *[16] * (layers - 1), 12]
    assert [(part.in_features, part.out_features) for part in linear] == list(pairwise(sizes))
    # A bias only where no normalisation follows.
    assert [part.bias is not None for part in linear] == [False] * (layers - 1) + [not standardize]
    assert sum(isinstance(part, nn.BatchNorm1d) for part in projector.modules()) == layers - 1
    assert sum(isinstance(part, nn.ReLU) for part in projector.modules()) == layers - 1
    assert sum(isinstance(part, Standardize) for part in projector.modules()) == standardize

    z = projector(torch.randn(32, 8))
    assert z.shape == (32, projector.out_features) == (32, 12)
    if standardize:
        torch.testing.assert_close(z.mean(dim=0), torch.zeros(12), rtol=0, atol=1e-5)
        torch.testing.assert_close(z.var(dim=0, correction=0), torch.ones(12))


def test_projector_of_the_paper_has_three_layers_of_2048() -> None:
    with torch.device("meta"):
        projector = Projector(640)
    assert (projector.in_features, projector.out_features) == (640, 2048)
    expected = 640 * 2048 + 2 * 2048**2 + 2 * 2 * 2048
    assert sum(parameter.numel() for parameter in projector.parameters()) == expected


def test_every_layer_of_the_projector_gets_a_gradient() -> None:
    torch.manual_seed(0)
    projector = Projector(8, layers=4, width=16)
    z = projector(torch.randn(32, 8))
    (z * torch.randn_like(z)).sum().backward()
    for key, parameter in projector.named_parameters():
        assert parameter.grad.abs().max() > 1e-6, key


@pytest.mark.parametrize("wrong", [{"width": 0}, {"out_features": 0}, {"in_features": 0}])
def test_projector_refuses_sizes_below_one(wrong: dict[str, int]) -> None:
    name = next(iter(wrong))
    with pytest.raises(UserError, match=f"{name} of at least 1, found 0"):
        Projector(**{"in_features": 8, **wrong})


def test_projector_without_layers_hands_features_on() -> None:
    x = torch.randn(6, 8)
    bare = Projector(8, layers=0, standardize=False)
    assert bare.out_features == 8
    assert torch.equal(bare(x), x)
    torch.testing.assert_close(Projector(8, layers=0)(x).var(dim=0, unbiased=False), torch.ones(8))
    with pytest.raises(UserError, match="must not be negative, found -1"):
        Projector(8, layers=-1)


def test_projector_without_norm_has_biases_instead() -> None:
    projector = Projector(8, layers=2, width=16, norm=False, standardize=False)
    kinds = [type(part) for part in projector.layers]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear]
    assert projector.layers[0].bias is not None
