"""Arrays as sources: layouts, types, labels, fingerprints."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eigenshot.data.npz import load_npz
from eigenshot.data.source import ArraySource, Source
from eigenshot.errors import CorruptFileError, UserError


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_an_array_source_is_a_source() -> None:
    source = ArraySource.from_array(noise(4, 8, 8))
    assert isinstance(source, Source)
    assert not isinstance(noise(4, 8, 8), Source)


def test_all_layouts_of_the_same_pictures_agree() -> None:
    first = noise(5, 3, 8, 6)
    last = first.transpose(0, 2, 3, 1)
    for images in (first, last, torch.from_numpy(first), torch.from_numpy(last.copy())):
        source = ArraySource.from_array(images)
        assert (len(source), source.shape) == (5, (3, 8, 6))
        np.testing.assert_array_equal(source.images(range(5)).numpy(), first)
    grey = noise(5, 8, 6)
    for images in (grey, grey[..., None], grey[:, None]):
        np.testing.assert_array_equal(
            ArraySource.from_array(images).images(range(5)).numpy(), grey[:, None]
        )


@pytest.mark.parametrize(
    ("shape", "found"),
    [((2, 3, 8, 3), (3, 3, 8)), ((2, 1, 5, 3), (3, 1, 5)), ((2, 3, 8, 4), (3, 8, 4))],
)
def test_ambiguous_layouts_have_channels_last(shape, found) -> None:
    assert ArraySource.from_array(noise(*shape)).shape == found


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 8, 8, 4), r"alpha.*images\[\.\.\., :3\]"),
        ((2, 4, 8, 8), r"alpha.*images\[:, :3\]"),
        ((2, 8, 8, 5), r"found \(2, 8, 8, 5\)"),
        ((8, 8), r"found \(8, 8\)"),
        ((20, 30, 3), r"image\[None\]"),
        ((0, 8, 8), "at least one image"),
        ((2, 0, 8), "at least one pixel"),
    ],
)
def test_other_shapes_are_refused(shape, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ArraySource.from_array(noise(*shape))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "longdouble"])
def test_floating_images_are_scaled_and_rounded(dtype: str) -> None:
    expected = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    source = ArraySource.from_array((expected / 255).astype(dtype))
    np.testing.assert_array_equal(source.pixels.numpy()[0], expected)
    nearly = ArraySource.from_array(np.full((1, 2, 2), 127.7 / 255, dtype))
    assert nearly.pixels.unique().tolist() == [128]


def test_bfloat16_tensors_are_accepted() -> None:
    source = ArraySource.from_array(torch.tensor([0.0, 0.5, 1.0]).bfloat16().reshape(3, 1, 1))
    assert source.pixels.flatten().tolist() == [0, 128, 255]


def test_out_of_range_floats_state_the_range() -> None:
    images = np.zeros((2, 4, 4), np.float32)
    images[1, 0, 0], images[0, 0, 0] = 255.0, -0.5
    with pytest.raises(UserError, match=r"\[-0\.5, 255\]"):
        ArraySource.from_array(images)
    images[1, 0, 0] = np.inf
    with pytest.raises(UserError, match="inf"):
        ArraySource.from_array(images)


def test_nan_is_counted_and_located() -> None:
    images = np.zeros((9, 4, 4), np.float32)
    images[[2, 7], 1, 1] = np.nan
    with pytest.raises(UserError, match=r"NaN in 2 of 9 images: rows 2, 7$"):
        ArraySource.from_array(images)


@pytest.mark.parametrize(
    ("images", "found"),
    [
        (np.zeros((2, 4, 4), np.int64), "int64"),
        (torch.zeros(2, 4, 4, dtype=torch.bool), "bool"),
        ([[1, 2]], "list"),
    ],
)
def test_other_types_are_refused(images, found: str) -> None:
    with pytest.raises(UserError, match=f"found .*{found}"):
        ArraySource.from_array(images)


def test_read_only_and_reversed_arrays_are_accepted() -> None:
    images = noise(3, 4, 4)
    images.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's, on memory that it may not write
        assert torch.equal(ArraySource.from_array(images).pixels[:, 0], torch.tensor(images))
    source = ArraySource.from_array(images[::-1, :, ::-1])
    np.testing.assert_array_equal(source.pixels[:, 0].numpy(), images[::-1, :, ::-1])


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, np.uint8])
def test_integer_labels(kind) -> None:
    source = ArraySource.from_array(noise(4, 4, 4), kind([0, 2, 1, 2]))
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == [0, 2, 1, 2]
    assert source.class_names == ("0", "1", "2")


@pytest.mark.parametrize("kind", [list, np.array, np.bytes_, lambda x: np.array(x, object)])
def test_string_labels_become_class_names(kind) -> None:
    source = ArraySource.from_array(noise(3, 4, 4), kind(["owl", "cat", "owl"]))
    assert source.class_names == ("cat", "owl")
    assert source.labels is not None
    assert source.labels.tolist() == [1, 0, 1]
    named = ArraySource.from_array(noise(2, 4, 4), ["cat", "owl"], ["owl", "emu", "cat"])
    assert named.labels is not None
    assert named.labels.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("labels", "class_names", "message"),
    [
        ([0, 1], None, r"\(3,\), found \(2,\)"),
        ([[0], [1], [2]], None, r"found \(3, 1\)"),
        ([0.0, 1.0, 2.0], None, "float64"),
        ([0, -2, 2], None, "count classes from 0, -1 where one is unknown, found -2 to 2"),
        ([0, 1, 3], ["a", "b", "c"], "from 0 to 2, .* found 0 to 3"),
        ([0, 1, 10**9], None, "1000000000"),
        (["cat", "dgo", "cat"], ["cat", "dog"], "'dgo'.*did you mean 'dog'"),
        ([0, 0, 1], ["a", "a"], "'a' more than once"),
        ([0, 0, 0], [7], "found 7"),
        (None, ["a", "b"], "no labels"),
    ],
)
def test_wrong_labels_are_refused(labels, class_names, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ArraySource.from_array(noise(3, 4, 4), labels, class_names)


def test_the_constructor_refuses_what_is_not_uint8_or_not_one_label_each() -> None:
    with pytest.raises(UserError, match="float32"):
        ArraySource(torch.zeros(2, 3, 4, 4))
    with pytest.raises(UserError, match=r"2 images.*\(3,\)"):
        ArraySource(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), np.zeros(3), ("a",))


def labelled() -> ArraySource:
    return ArraySource.from_array(noise(6, 3, 8, 8), list("abcabc"), name="letters")


@pytest.mark.parametrize("indices", [[4, 0, 4], np.array([4, 0, 4]), torch.tensor([4, 0, 4])])
def test_images_and_subset_keep_the_asked_order(indices) -> None:
    source = labelled()
    assert torch.equal(source.images(indices), source.pixels[[4, 0, 4]])
    part = source.subset(indices)
    assert torch.equal(part.pixels, source.pixels[[4, 0, 4]])
    assert part.labels is not None
    assert part.labels.tolist() == [1, 0, 1]
    assert part.class_names == ("a", "b", "c")


def test_a_mask_selects_and_a_float_index_is_refused() -> None:
    source = labelled()
    assert source.labels is not None
    assert torch.equal(source.subset(source.labels == 1).pixels, source.pixels[[1, 4]])
    assert len(source.subset([])) == 0
    with pytest.raises(UserError, match="float64"):
        source.images([0.5])  # type: ignore[list-item]
    with pytest.raises(IndexError):
        source.images([6])


def test_of_classes_renumbers_in_the_asked_order() -> None:
    part = labelled().of_classes([2, 0])
    assert part.class_names == ("c", "a")
    assert part.labels is not None
    assert part.labels.tolist() == [1, 0, 1, 0]
    assert torch.equal(part.pixels, labelled().pixels[[0, 2, 3, 5]])


@pytest.mark.parametrize(
    ("ids", "message"), [([3], "0..2, found 3"), ([-1], "-1"), ([1, 1], "once")]
)
def test_of_classes_refuses(ids: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        labelled().of_classes(ids)
    with pytest.raises(UserError, match="no labels"):
        ArraySource.from_array(noise(2, 4, 4)).of_classes([0])


@pytest.mark.parametrize("image_size", [9, 50])
def test_resizing_agrees_with_pillow(image_size: int) -> None:
    smooth = Image.fromarray(noise(5, 7, 3)).resize((28, 20), Image.Resampling.BICUBIC)
    source = ArraySource.from_array(np.asarray(smooth)[None].repeat(300, 0), [0] * 300)
    resized = source.resized(image_size)
    expected = smooth.crop((4, 0, 24, 20)).resize((image_size,) * 2, Image.Resampling.BICUBIC)
    # Pillow's cubic has a = -0.5 and so has torch's when antialiased.
    difference = resized.pixels.permute(0, 2, 3, 1).numpy().astype(int) - np.asarray(expected)
    assert np.abs(difference).max() <= 2
    assert resized.shape == (3, image_size, image_size)
    np.testing.assert_array_equal(resized.labels, source.labels)


def test_resizing_does_not_wrap_around_at_sharp_edges() -> None:
    images = np.zeros((1, 16, 16), np.uint8)
    images[:, :, 8:] = 255
    large = ArraySource.from_array(images).resized(64).pixels[0, 0].numpy().astype(int)
    assert (np.diff(large, axis=1) >= 0).all()
    assert set(large[:, :24].ravel()) == {0}
    assert set(large[:, 40:].ravel()) == {255}


def test_resizing_to_the_same_size_is_the_same_source() -> None:
    source = labelled()
    assert source.resized(8) is source
    with pytest.raises(UserError, match="found 0"):
        source.resized(0)


def test_the_fingerprint_follows_the_content_only() -> None:
    images, labels = noise(300, 4, 4), np.arange(300) % 3
    names = ["x", "y", "z"]
    same = ArraySource.from_array(images, labels, names, name="one").fingerprint
    assert same == ArraySource.from_array(images[..., None], labels, names, "two").fingerprint
    assert len(bytes.fromhex(same)) == 16
    changed = images.copy()
    changed[299, 3, 3] ^= 1
    others = {
        same,
        ArraySource.from_array(changed, labels, names).fingerprint,
        ArraySource.from_array(images, labels[::-1].copy(), names).fingerprint,
        ArraySource.from_array(images, labels, ["x", "y", "w"]).fingerprint,
        ArraySource.from_array(images, labels % 2, names).fingerprint,
        ArraySource.from_array(images).fingerprint,
        ArraySource.from_array(images.reshape(300, 2, 8)).fingerprint,
    }
    assert len(others) == 7


def test_the_fingerprint_does_not_depend_on_memory_layout() -> None:
    pixels = torch.from_numpy(noise(4, 3, 8, 8))
    strided = pixels.to(memory_format=torch.channels_last)
    assert ArraySource(pixels).fingerprint == ArraySource(strided).fingerprint


def test_npz_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    images = noise(3, 8, 8, 3)
    np.savez_compressed(path, images=images, labels=[1, 0, 1], class_names=["a", "b"])
    source = load_npz(path)
    expected = ArraySource.from_array(images, [1, 0, 1], ["a", "b"])
    assert source.fingerprint == expected.fingerprint
    np.savez(path, images=images)
    assert load_npz(str(path)).labels is None


def test_npz_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_npz(tmp_path / "missing.npz")
    path = tmp_path / "data.npz"
    path.write_text("text")
    with pytest.raises(CorruptFileError, match=r"not an \.npz"):
        load_npz(path)
    np.savez(path, pictures=noise(2, 4, 4), labels=[0, 1])
    with pytest.raises(UserError, match="found: labels, pictures"):
        load_npz(path)
    np.savez(path, images=noise(2, 64, 64))
    whole = bytearray(path.read_bytes())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptFileError, match="cut short"):
        load_npz(path)
    whole[len(whole) // 2] ^= 255
    path.write_bytes(whole)
    with pytest.raises(CorruptFileError, match="cannot read"):
        load_npz(path)


def test_npz_never_unpickles(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, images=noise(2, 4, 4), labels=np.array(["a", "b"], object), allow_pickle=True)
    with pytest.raises(CorruptFileError, match="pickle"):
        load_npz(path)


def test_a_label_of_minus_one_is_unknown_and_no_class() -> None:
    source = ArraySource.from_array(noise(4, 4, 4), [0, -1, 1, -1], ["cat", "dog"])
    dogs = source.of_classes([1])
    assert (len(dogs), dogs.class_names) == (1, ("dog",))
    assert torch.equal(dogs.images([0]), source.images([2]))
    assert ArraySource.from_array(noise(2, 4, 4), [-1, -1]).labels is None
