"""Encoders as files: what is written is what is read, and nothing else is believed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eigenshot import Encoder, create_backbone, load_encoder
from eigenshot.encoder import Preprocessing, busy_batch
from eigenshot.errors import CannotRead, CorruptFileError, UserError
from eigenshot.files import atomic_write, remove_leftovers
from eigenshot.tensorfile import read_tensors, write_tensors
from eigenshot.training.initial import initialise_from


def small_encoder(seed: int = 0) -> Encoder:
    torch.manual_seed(seed)
    options = {"widths": [4, 4, 4, 6]}
    preprocessing = Preprocessing(16, 3, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    architecture = {"name": "conv4", "options": options}
    return Encoder(create_backbone("conv4", **options), preprocessing, architecture, {"seed": seed})


def pictures(count: int = 5, size: int = 16) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


@torch.no_grad()
def test_features_in_parts_are_those_of_all_at_once() -> None:
    encoder = small_encoder()
    encoder.backbone.eval()
    images = torch.from_numpy(pictures(2 * busy_batch("cpu") + 1)).permute(0, 3, 1, 2)
    parts, whole = encoder.features_in_parts(images), encoder.features(images)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


class TestFile:
    def test_read_back_it_gives_the_same_features(self, tmp_path: Path) -> None:
        encoder = small_encoder()
        again = load_encoder(encoder.save(tmp_path / "e.safetensors"))
        np.testing.assert_array_equal(encoder.transform(pictures()), again.transform(pictures()))
        assert again.preprocessing == encoder.preprocessing
        assert again.provenance == {"seed": 0}

    def test_equal_encoders_are_equal_bytes(self, tmp_path: Path) -> None:
        files = [small_encoder().save(tmp_path / f"{name}.safetensors") for name in "ab"]
        assert files[0].read_bytes() == files[1].read_bytes()
        other = small_encoder(seed=1).save(tmp_path / "c.safetensors")
        assert other.read_bytes() != files[0].read_bytes()

    @pytest.mark.parametrize("place", [-3, 400, 0])
    def test_any_damage_is_noticed(self, tmp_path: Path, place: int) -> None:
        file = small_encoder().save(tmp_path / "e.safetensors")
        content = bytearray(file.read_bytes())
        content[place] ^= 0x40
        file.write_bytes(content)
        with pytest.raises(UserError):
            load_encoder(file)

    def test_a_file_that_may_not_be_read_is_not_called_damaged(
        self, tmp_path: Path, deny: Callable[[Path], None]
    ) -> None:
        (tmp_path / "run").mkdir()
        file = small_encoder().save(tmp_path / "run" / "encoder.safetensors")
        deny(file)
        for path in (file, file.parent):
            with pytest.raises(CannotRead, match=r"^cannot read '.*': permission denied$"):
                load_encoder(path)
        deny(file.parent)
        for path in (file, file.parent):
            with pytest.raises(CannotRead, match=r"^cannot read '.*': permission denied$"):
                load_encoder(path)

    def test_a_header_without_what_is_needed(self, tmp_path: Path) -> None:
        file = tmp_path / "e.safetensors"
        write_tensors(file, {"x": torch.zeros(1)}, {}, kind="eigenshot-encoder")
        with pytest.raises(CorruptFileError, match="is no encoder of ours"):
            load_encoder(file)

    def test_a_newer_format_is_said_to_be_one(self, tmp_path: Path) -> None:
        file = tmp_path / "e.safetensors"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("eigenshot.tensorfile._VERSION", 99)
            small_encoder().save(file)
        with pytest.raises(UserError, match=r"newer eigenshot .format 99."):
            load_encoder(file)

    def test_an_unfinished_write_leaves_the_old_file(self, tmp_path: Path) -> None:
        file = tmp_path / "f"
        file.write_bytes(b"old")

        def break_off() -> None:
            with atomic_write(file) as handle:
                handle.write(b"new")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            break_off()
        assert file.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["f"]
        (tmp_path / ".f.killed").touch()
        remove_leftovers(tmp_path, "f")
        assert os.listdir(tmp_path) == ["f"]

    def test_a_state_dict_with_code_inside_is_not_run(self, tmp_path: Path) -> None:
        class Trap:
            def __reduce__(self) -> tuple[object, ...]:
                return (Path.touch, (tmp_path / "sprung",))

        torch.save({"weights": Trap()}, tmp_path / "w.pt")
        with pytest.raises(CorruptFileError, match="cannot be read as weights"):
            initialise_from(small_encoder().backbone, tmp_path / "w.pt")
        assert not (tmp_path / "sprung").exists()
        torch.save([1, 2], tmp_path / "list.pt")
        with pytest.raises(CorruptFileError, match="holds no state dict"):
            initialise_from(small_encoder().backbone, tmp_path / "list.pt")

    def test_a_wrapped_state_dict_and_foreign_safetensors_are_read(self, tmp_path: Path) -> None:
        from safetensors.torch import save_file

        weights = small_encoder(seed=3).backbone.state_dict()
        torch.save({"state_dict": weights, "epoch": 4}, tmp_path / "w.pt")
        save_file(weights, tmp_path / "w.safetensors")
        for name in ("w.pt", "w.safetensors"):
            target = small_encoder().backbone
            initialise_from(target, tmp_path / name)
            assert torch.equal(
                target.state_dict()["stages.0.0.weight"], weights["stages.0.0.weight"]
            )

    def test_only_the_asked_kind(self, tmp_path: Path) -> None:
        write_tensors(tmp_path / "t", {}, {"a": 1}, kind="eigenshot-checkpoint")
        assert read_tensors(tmp_path / "t", kind=None) == ({}, {"a": 1})
        with pytest.raises(CorruptFileError, match="is an eigenshot-checkpoint, where"):
            read_tensors(tmp_path / "t", kind="eigenshot-encoder")


class TestTransform:
    def test_everything_that_holds_images(self, tmp_path: Path) -> None:
        encoder = small_encoder()
        images = pictures()
        expected = encoder.transform(images)
        assert expected.shape == (5, encoder.out_features)
        assert expected.dtype == np.float32
        files = []
        for number, picture in enumerate(images):
            files.append(tmp_path / f"{number}.png")
            Image.fromarray(picture).save(files[-1])
        opened = [Image.open(file) for file in files]
        channels_first = torch.from_numpy(images).permute(0, 3, 1, 2)
        same = [channels_first, files, [str(f) for f in files], opened, list(images), tmp_path]
        for form in same:
            np.testing.assert_allclose(encoder.transform(form), expected, atol=1e-6)
        np.testing.assert_allclose(encoder.transform(files[2]), expected[2:3], atol=1e-6)
        np.savez(tmp_path / "images.npz", images=images)
        np.testing.assert_allclose(encoder.transform(tmp_path / "images.npz"), expected, atol=1e-6)

    def test_other_sizes_and_grey_pictures_are_brought_to_shape(self) -> None:
        encoder = small_encoder()
        assert encoder.transform(pictures(size=40)).shape == (5, 6)
        assert encoder.transform(pictures()[..., 0]).shape == (5, 6)

    def test_batches_do_not_matter_and_progress_is_told(self) -> None:
        encoder = small_encoder()
        told: list[tuple[int, int]] = []
        one = encoder.transform(pictures(), batch_size=2, progress=lambda *p: told.append(p))
        np.testing.assert_allclose(one, encoder.transform(pictures()), atol=1e-5)
        assert told == [(2, 5), (4, 5), (5, 5)]

    def test_what_is_no_image(self, tmp_path: Path) -> None:
        encoder = small_encoder()
        with pytest.raises(UserError, match="cannot read images from int"):
            encoder.transform(3)
        with pytest.raises(UserError, match="an empty list"):
            encoder.transform([])
        (tmp_path / "a.png").write_bytes(b"no")
        with pytest.raises(UserError, match=r"a\.png"):
            encoder.transform([tmp_path / "a.png"])

    def test_weights_stay_where_they_are_in_memory(self) -> None:
        backbone = create_backbone("resnet12", in_channels=1)
        backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        encoder = Encoder(backbone, Preprocessing(16, 1, (0.5,), (0.5,)), {"name": "resnet12"})
        before = {name: value.data_ptr() for name, value in backbone.state_dict().items()}
        for _ in range(2):
            encoder.transform(pictures(2))
        assert {name: value.data_ptr() for name, value in backbone.state_dict().items()} == before

    def test_images_and_views_of_them_have_one_way_to_features(self) -> None:
        encoder = small_encoder()
        encoder.backbone.eval()
        images = torch.from_numpy(pictures()).permute(0, 3, 1, 2)
        with torch.no_grad():
            found = encoder.features(images)
            assert torch.equal(encoder.features(encoder.normalise(images)), found)
        np.testing.assert_array_equal(found.numpy(), encoder.transform(pictures()))

    def test_a_cpu_does_not_compute_in_half_precision(self) -> None:
        with pytest.raises(UserError, match="bf16 needs a GPU"):
            small_encoder().transform(pictures(), precision="bf16")
