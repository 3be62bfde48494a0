"""Random views of images, in the size that the encoder learned from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eigenshot.encoder import Encoder, Preprocessing
from eigenshot.evaluation.linear import probe_view
from eigenshot.evaluation.views import training_view, view_size
from eigenshot.networks import create_backbone


def encoder_of(training: dict[str, Any]) -> Encoder:
    config = {
        "augment": {"kind": "simclr", "options": {}, "view_a": {}},
        "data": {"image_size": 28},
        "training": training,
    }
    return Encoder(
        create_backbone("conv4", widths=(4, 4, 4, 4)),
        Preprocessing(40, 3, (0.5,) * 3, (0.25,) * 3),
        {"name": "conv4"},
        {"config": config},
    )


@pytest.mark.parametrize(
    ("training", "size"),
    [
        ({}, 40),  # a run of before there were such settings
        ({"resolution": [], "encoder_size": 0}, 40),
        ({"resolution": [], "encoder_size": 40}, 28),
        ({"resolution": [[0, 16], [0.5, 24]], "encoder_size": 40}, 24),
        ({"resolution": [[0, 16], [0.5, 40]], "encoder_size": 0}, 40),
    ],
)
def test_views_have_the_size_of_the_last_that_were_learned_from(
    training: dict[str, Any], size: int
) -> None:
    encoder = encoder_of(training)
    assert view_size(encoder) == size
    images = torch.zeros(2, 3, 50, 50, dtype=torch.uint8)
    for view in (training_view(encoder), probe_view(encoder)):
        assert view(images, torch.Generator()).shape == (2, 3, size, size)


def test_an_encoder_that_does_not_say_how_it_learned_takes_its_own_size() -> None:
    encoder = encoder_of({})
    encoder.provenance = {}
    assert view_size(encoder) == 40
