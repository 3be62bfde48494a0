"""Interpolation of samples, whatever a method makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eigenshot.errors import UserError
from eigenshot.methods.mixing import Mix, MixingMethod, mixed
from eigenshot.networks import Projector, create_backbone


def method(**options: object) -> MixingMethod:
    backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
    return MixingMethod(backbone, Projector(8, width=8), **options)  # type: ignore[arg-type]


def test_a_coefficient_for_each_sample_mixes_each_by_its_own() -> None:
    x = torch.arange(24.0, dtype=torch.float64).reshape(3, 2, 2, 2)
    mix = Mix(0, torch.tensor([1.0, 0.25, 0.0], dtype=torch.float64), torch.tensor([1, 2, 0]))
    expected = torch.stack([x[0], 0.25 * x[1] + 0.75 * x[2], x[0]])
    torch.testing.assert_close(mix(x), expected)
    torch.testing.assert_close(mix(x.flatten(1)), expected.flatten(1))
    assert mixed(x, None) is x


def test_a_draw_for_each_sample_has_one_layer_and_the_law_of_beta() -> None:
    drawn = method(mixup="manifold", coefficients="sample", alpha=0.5).draw(
        4000, np.random.default_rng(0)
    )
    assert drawn is not None
    assert drawn.coefficient.shape == (4000,)
    # Beta(a, a) has mean 1/2 and variance 1 / (4 (2a + 1)).
    assert abs(float(drawn.coefficient.mean()) - 0.5) < 0.02
    assert abs(float(drawn.coefficient.var()) - 1 / 8) < 0.01


def test_the_part_of_a_draw_is_that_of_its_own_samples() -> None:
    drawn = method(mixup="input", coefficients="sample").draw(6, np.random.default_rng(1), blocks=3)
    assert drawn is not None
    x = torch.randn(6, 5, dtype=torch.float64)
    parts = [drawn.part(index, 3)(block) for index, block in enumerate(x.chunk(3))]
    torch.testing.assert_close(torch.cat(parts), drawn(x))


def test_on_apples_gpus_a_coefficient_is_float32() -> None:
    mix = Mix(0, torch.tensor(0.5, dtype=torch.float64), torch.arange(2))
    assert mix.to(torch.device("cpu")).coefficient.dtype == torch.float64

    moved: list[object] = []
    original = torch.Tensor.to

    def to(self: torch.Tensor, target: object) -> torch.Tensor:
        moved.append((self.dtype, target))
        return self if isinstance(target, torch.device) else original(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", to)
        mix.to(torch.device("mps"))
    assert (torch.float64, torch.device("mps")) not in moved


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha must be positive, found 0.0"),
        (
            {"layers": (0, 5)},
            r"between 0 \(the input\) and 4 \(after the last stage\), found \[5\]",
        ),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        method(**options)
