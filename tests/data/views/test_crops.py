"""Fixed crops: where they lie, and what an encoder makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

from eigenshot import FewShotClassifier, load_encoder
from eigenshot.cli_embed import embed_command
from eigenshot.data.views.crops import fixed_crops
from eigenshot.errors import UserError
from eigenshot.evaluation.classifier_file import load_classifier
from eigenshot.evaluation.features import encoder_digest
from tests.test_encoder import pictures, small_encoder


def ramps(side: int = 16) -> torch.Tensor:
    """A picture whose two channels are the place itself, across and down, in pixels."""
    place = torch.arange(side, dtype=torch.float32)
    return torch.stack((place.expand(side, side), place[:, None].expand(side, side)))[None]


class TestPlaces:
    def test_corners_and_centre_of_seven_eighths(self) -> None:
        views = list(fixed_crops(ramps(), "five"))
        assert [tuple(view.shape) for view in views] == [(1, 2, 16, 16)] * 5
        centres = [view.mean(dim=(0, 2, 3)).tolist() for view in views]
        # Of 14 pixels from 0 or from 2 the middle is 6.5 or 8.5; of those from 1 it is 7.5.
        expected = [(6.5, 6.5), (8.5, 6.5), (6.5, 8.5), (8.5, 8.5), (7.5, 7.5)]
        np.testing.assert_allclose(centres, expected, atol=1e-4)

    def test_magnified_as_pillow_magnifies(self) -> None:
        image = np.random.default_rng(0).random((32, 32), dtype=np.float32)
        (top_left, *_) = fixed_crops(torch.from_numpy(image)[None, None], "five")
        wanted = Image.fromarray(image[:28, :28]).resize((32, 32), Image.Resampling.BILINEAR)
        np.testing.assert_allclose(top_left[0, 0], np.asarray(wanted), atol=1e-5)

    def test_ten_are_five_and_their_mirror_images(self) -> None:
        five, ten = (list(fixed_crops(ramps(), kind)) for kind in ("five", "ten"))  # type: ignore[arg-type]
        assert len(ten) == 10
        for plain, one, mirrored in zip(five, ten[::2], ten[1::2], strict=True):
            assert torch.equal(one, plain)
            assert torch.equal(mirrored, plain.flip(-1))

    @pytest.mark.parametrize("side", [1, 2, 7])
    def test_the_smallest_pictures_have_crops(self, side: int) -> None:
        assert len(list(fixed_crops(ramps(side), "ten"))) == 10


class TestEncoder:
    def test_features_are_the_mean_of_unit_vectors(self) -> None:
        encoder, images = small_encoder(), pictures()
        found = encoder.with_crops("ten").transform(images)
        normalised = encoder.normalise(torch.from_numpy(images).permute(0, 3, 1, 2))
        total = np.zeros_like(found)
        encoder.backbone.eval()
        with torch.no_grad():
            for view in fixed_crops(normalised, "ten"):
                feature = encoder.backbone(view).numpy()
                total += feature / np.linalg.norm(feature, axis=1, keepdims=True)
        np.testing.assert_allclose(found, total / 10, rtol=1e-4, atol=1e-6)

    def test_ten_do_not_tell_left_from_right(self) -> None:
        encoder, images = small_encoder(), pictures()
        for kind, alike in (("five", False), ("ten", True)):
            chosen = encoder.with_crops(kind)  # type: ignore[arg-type]
            both = [chosen.transform(i) for i in (images, images[:, :, ::-1].copy())]
            assert np.allclose(*both, rtol=1e-4, atol=1e-6) == alike

    def test_crops_are_kept_in_the_file_and_whole_images_leave_no_trace(
        self, tmp_path: Path
    ) -> None:
        encoder = small_encoder()
        five = encoder.with_crops("five")
        assert encoder_digest(five) != encoder_digest(encoder)
        assert encoder_digest(five.with_crops("whole")) == encoder_digest(encoder)
        again = load_encoder(five.save(tmp_path / "e.safetensors"))
        np.testing.assert_array_equal(again.transform(pictures()), five.transform(pictures()))
        assert "crops" not in encoder.header()["preprocessing"]
        assert encoder.with_crops(None) is encoder

    def test_a_classifier_keeps_them(self, tmp_path: Path) -> None:
        model = FewShotClassifier(small_encoder().with_crops("five"))
        model.fit(pictures(), ["a", "a", "b", "b", "b"])
        again = load_classifier(model.save(tmp_path / "c.safetensors"))
        np.testing.assert_array_equal(
            again.predict_proba(pictures()), model.predict_proba(pictures())
        )

    def test_unknown_crops(self) -> None:
        with pytest.raises(UserError, match="unknown crops 'six'; known: whole, five, ten"):
            small_encoder().with_crops("six")  # type: ignore[arg-type]


def test_the_command_line_takes_them(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(embed_command)
    encoder = small_encoder()
    encoder.save(tmp_path / "e.safetensors")
    np.savez(tmp_path / "images.npz", images=pictures())
    arguments = [tmp_path / "e.safetensors", tmp_path / "images.npz", "--out", tmp_path / "f.npz"]
    asked = [*map(str, arguments), "--device", "cpu", "--no-cache", "--crops"]
    done = CliRunner().invoke(app, [*asked, "five"])
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "f.npz") as read:
        expected = encoder.with_crops("five").transform(pictures())
        np.testing.assert_array_equal(read["features"], expected)
    refused = CliRunner().invoke(app, [*asked, "two"])
    assert "unknown crops 'two'" in str(refused.exception)
