"""Images whose label is unknown are left out, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eigenshot.data.labelled import with_known_labels
from eigenshot.data.source import ArraySource
from eigenshot.errors import UserError
from tests.data.benchmarks.test_hub import Listener

PIXELS = torch.arange(5, dtype=torch.uint8)[:, None, None, None]


def test_only_images_with_a_label_are_left() -> None:
    source = ArraySource(PIXELS, np.array([1, -1, 0, -1, 1]), ("cat", "dog"), name="pets")
    listener = Listener()
    known = with_known_labels(source, listener)
    assert listener.notes == ["pets: left out 2 images without a known label"]
    assert known.labels is not None
    assert known.labels.tolist() == [1, 0, 1]
    assert (len(known), known.shape, known.class_names) == (3, (1, 1, 1), ("cat", "dog"))
    assert known.images([2, 0]).flatten().tolist() == [4, 0]
    assert known.images(np.array([False, True, False])).flatten().tolist() == [2]
    assert known.fingerprint != source.fingerprint


def test_what_is_fully_labelled_or_not_at_all_stays_as_it_is() -> None:
    labelled = ArraySource(PIXELS, np.zeros(5), ("cat",))
    unlabelled = ArraySource(PIXELS)
    assert with_known_labels(labelled) is labelled
    assert with_known_labels(unlabelled) is unlabelled


def test_labels_that_are_all_unknown_are_refused() -> None:
    with pytest.raises(UserError, match="not one image of pets has a known label"):
        with_known_labels(ArraySource(PIXELS, np.full(5, -1), ("cat",), name="pets"))
