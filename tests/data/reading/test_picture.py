"""What `read_image` makes of the picture files people have."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eigenshot.data.reading.picture import UnreadableImage, read_image, to_array
from eigenshot.errors import UserError

RED, GREEN, BLUE, GREY = (255, 0, 0), (0, 255, 0), (0, 0, 255), (90, 90, 90)

# What a camera held in each EXIF orientation stores of an upright picture.
STORED_AS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def four_quarters(width: int, height: int) -> Image.Image:
    """Red and green above, blue and grey below: no symmetry maps it to itself."""
    picture = Image.new("RGB", (width, height), GREY)
    picture.paste(RED, (0, 0, width // 2, height // 2))
    picture.paste(GREEN, (width // 2, 0, width, height // 2))
    picture.paste(BLUE, (0, height // 2, width // 2, height))
    return picture


def saved(picture: Image.Image, format: str, **options: object) -> io.BytesIO:
    stream = io.BytesIO()
    picture.save(stream, format, **options)
    stream.seek(0)
    return stream


def centre(array: np.ndarray) -> np.ndarray:
    return array[:, array.shape[1] // 2, array.shape[2] // 2].astype(int)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", STORED_AS)
def test_every_exif_orientation_gives_the_upright_picture(format: str, orientation: int) -> None:
    upright = four_quarters(96, 64)
    turn = STORED_AS[orientation]
    stored = upright if turn is None else upright.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = read_image(saved(stored, format, exif=exif), size=32).astype(int)
    for colour, row, column in ((RED, 8, 8), (GREEN, 8, 23), (BLUE, 23, 8), (GREY, 23, 23)):
        np.testing.assert_allclose(found[:, row, column], colour, atol=12)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("exif", [b"garbage", b"II*\0", b"II*\0\xff\xff\xff\xff"])
def test_damaged_exif_leaves_the_picture_readable(format: str, exif: bytes) -> None:
    found = read_image(saved(four_quarters(64, 64), format, exif=b"Exif\0\0" + exif), size=16)
    np.testing.assert_allclose(found[:, 2, 2], RED, atol=12)


def test_cmyk_red_is_red() -> None:
    cmyk = Image.new("CMYK", (20, 20), (0, 255, 255, 0))
    for format in ("JPEG", "TIFF"):
        stream = saved(cmyk, format)
        assert Image.open(stream).mode == "CMYK"
        np.testing.assert_allclose(centre(read_image(stream, size=8)), RED, atol=6)


def test_ycbcr_keeps_its_colour() -> None:
    stream = saved(Image.new("RGB", (16, 16), (200, 100, 50)).convert("YCbCr"), "TIFF")
    assert Image.open(stream).mode == "YCbCr"
    np.testing.assert_allclose(centre(read_image(stream, size=8)), (200, 100, 50), atol=3)


def test_one_bit_is_black_and_white() -> None:
    picture = Image.new("1", (16, 16), 0)
    picture.paste(1, (0, 0, 8, 16))
    found = read_image(saved(picture, "PNG"), size=16)
    assert found[:, 8, 2].tolist() == [255] * 3
    assert found[:, 8, 13].tolist() == [0] * 3


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
@pytest.mark.parametrize(("value", "expected"), [(0, 0), (32767, 127), (65535, 255)])
def test_sixteen_bit_spans_the_full_range(format: str, value: int, expected: int) -> None:
    stream = saved(Image.fromarray(np.full((9, 9), value, np.uint16)), format)
    assert Image.open(stream).mode.startswith("I;16")
    np.testing.assert_allclose(centre(read_image(stream, size=9)), expected, atol=1)


def test_big_endian_sixteen_bit_is_not_byte_swapped() -> None:
    picture = Image.frombytes("I;16B", (8, 8), np.full((8, 8), 0x40FF, ">u2").tobytes())
    np.testing.assert_allclose(centre(to_array(picture, size=8)), 0x40, atol=1)


def test_thirty_two_bit_integers_in_sixteen_bit_range_count_as_sixteen_bit() -> None:
    stream = saved(Image.fromarray(np.full((8, 8), 32767, np.int32)), "TIFF")
    assert Image.open(stream).mode == "I"
    np.testing.assert_allclose(centre(read_image(stream, size=8)), 127, atol=1)


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(-5.0, 3.0, np.float32), (-70_000, 900_000, np.int32)]
)
def test_wide_values_are_stretched_over_their_own_range(low, high, dtype) -> None:
    values = np.linspace(low, high, 256).reshape(16, 16).astype(dtype)
    found = read_image(saved(Image.fromarray(values), "TIFF"), size=16, channels=1)
    np.testing.assert_allclose(found.ravel(), np.arange(256), atol=1)


def test_float_picture_with_nan_uses_the_finite_values() -> None:
    values = np.full((8, 8), 2.0, np.float32)
    values[0], values[1] = 0.0, np.nan
    found = to_array(Image.fromarray(values), size=8)
    assert (found[:, 4, 4] == 255).all()
    assert (found[:, 1, 4] == 0).all()
    with pytest.raises(UnreadableImage, match="no finite value"):
        to_array(Image.fromarray(np.full((8, 8), np.nan, np.float32)), size=8)


def half_transparent(mode: str) -> Image.Image:
    """Left half transparent black, right half opaque dark grey (40)."""
    alpha = Image.new("L", (16, 16), 255)
    alpha.paste(0, (0, 0, 8, 16))
    picture = Image.new(mode[:-1], (16, 16), 40 if mode == "LA" else (40, 40, 40))
    picture.paste(0, (0, 0, 8, 16))
    picture.putalpha(alpha)
    return picture


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_transparency_is_laid_on_white(mode: str, channels: int) -> None:
    stream = saved(half_transparent(mode), "PNG")
    assert Image.open(stream).mode == mode
    found = read_image(stream, size=16, channels=channels)
    assert found.shape == (channels, 16, 16)
    np.testing.assert_allclose(found[:, 8, 2], 255, atol=1)
    np.testing.assert_allclose(found[:, 8, 13], 40, atol=1)


@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_palette_with_transparency_is_laid_on_white(format: str) -> None:
    picture = Image.new("P", (16, 16), 1)
    picture.putpalette([0, 0, 0, *BLUE])
    picture.paste(0, (0, 0, 8, 16))
    stream = saved(picture, format, transparency=0)
    assert Image.open(stream).mode == "P"
    found = read_image(stream, size=16)
    assert found[:, 8, 2].tolist() == [255, 255, 255]
    assert found[:, 8, 13].tolist() == list(BLUE)


@pytest.mark.parametrize("format", ["GIF", "TIFF", "WEBP"])
def test_first_frame_of_several(format: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN)]
    options = {"lossless": True} if format == "WEBP" else {}
    stream = saved(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert Image.open(stream).n_frames == 2
    np.testing.assert_allclose(centre(read_image(stream, size=8)), RED, atol=3)


@pytest.mark.parametrize(("width", "height"), [(300, 100), (100, 300), (301, 100), (7, 5)])
def test_the_centred_square_is_taken(width: int, height: int) -> None:
    side = min(width, height)
    picture = Image.new("RGB", (width, height), RED)
    left, top = (width - side) // 2, (height - side) // 2
    picture.paste(BLUE, (left, top, left + side + (width - side) % 2, top + side))
    found = read_image(saved(picture, "PNG"), size=20).astype(int)
    assert found.shape == (3, 20, 20)
    np.testing.assert_allclose(found[:, 10, 10], BLUE, atol=2)
    for row, column in ((0, 10), (19, 10), (10, 0), (10, 19)):
        assert found[2, row, column] > 120 > found[0, row, column]


def test_downscaling_is_antialiased() -> None:
    board = np.indices((256, 256)).sum(0) % 2 * 255
    found = read_image(saved(Image.fromarray(board.astype(np.uint8)), "PNG"), size=32)
    np.testing.assert_allclose(found, 127.5, atol=4)


def test_large_jpeg_agrees_with_a_full_decode() -> None:
    generator = np.random.default_rng(0)
    coarse = Image.fromarray(generator.integers(0, 256, (150, 200, 3), dtype=np.uint8))
    photo = coarse.resize((1600, 1200), Image.Resampling.BICUBIC)
    stream = saved(photo, "JPEG", quality=95, subsampling=0)
    draft = read_image(stream, size=200).astype(int)
    full = to_array(photo, size=200).astype(int)
    assert np.abs(draft - full).mean() < 2


def test_grey_and_colour_of_one_picture_agree() -> None:
    stream = saved(Image.new("RGB", (8, 8), (200, 100, 50)), "PNG")
    grey = read_image(stream, size=8, channels=1)
    assert grey.shape == (1, 8, 8)
    assert grey.dtype == np.uint8
    assert abs(int(grey[0, 4, 4]) - (0.299 * 200 + 0.587 * 100 + 0.114 * 50)) <= 1


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_truncated_file_is_unreadable(tmp_path: Path, format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = saved(Image.fromarray(noise), format).getvalue()
    path = tmp_path / "cut"
    path.write_bytes(whole)
    assert read_image(path, size=8).shape == (3, 8, 8)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnreadableImage) as caught:
        read_image(path, size=8)
    assert caught.value.path == str(path)
    assert caught.value.reason
    assert "\n" not in caught.value.reason


def test_what_is_no_picture_says_so(tmp_path: Path) -> None:
    cases = {
        b"": "empty",
        b"GIF89a": ".",
        b"just some text": "not a picture",
        b"%!PS-Adobe": "not a",
    }
    for content, reason in cases.items():
        path = tmp_path / "file.jpg"
        path.write_bytes(content)
        for given in (path, str(path), io.BytesIO(content)):
            with pytest.raises(UnreadableImage, match=reason):
                read_image(given, size=8)
    with pytest.raises(UnreadableImage, match="no such file"):
        read_image(tmp_path / "missing.png", size=8)
    with pytest.raises(UnreadableImage):
        read_image(tmp_path, size=8)


def test_postscript_is_never_handed_to_an_interpreter() -> None:
    stream = saved(four_quarters(16, 16), "EPS")
    assert Image.open(stream).format == "EPS"
    with pytest.raises(UnreadableImage, match="not a picture"):
        read_image(stream, size=8)


def test_denied_permission_is_unreadable() -> None:
    class Denied(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise PermissionError(13, "Permission denied")

    with pytest.raises(UnreadableImage, match="permission denied"):
        read_image(Denied(), size=8)


@pytest.mark.parametrize("extent", [(1, 51), (5100, 100)])
def test_extremely_elongated_is_unreadable(extent: tuple[int, int]) -> None:
    with pytest.raises(UnreadableImage, match="too elongated"):
        read_image(saved(Image.new("L", extent), "PNG"), size=8)
    assert read_image(saved(Image.new("L", (50, 1)), "PNG"), size=8).shape == (3, 8, 8)


@pytest.mark.parametrize("limit", [89_478_485, None])
def test_decompression_bomb_is_unreadable(monkeypatch, limit: int | None) -> None:
    bomb = saved(Image.new("1", (14_000, 13_000)), "PNG")
    assert len(bomb.getvalue()) < 100_000
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(UnreadableImage, match="pixels"):
        read_image(bomb, size=8)


def test_an_open_picture_is_treated_alike_and_left_as_it_was() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = saved(four_quarters(60, 40), "PNG", exif=exif)
    expected = read_image(stream, size=24)
    with Image.open(stream) as picture:
        np.testing.assert_array_equal(to_array(picture, size=24), expected)
        assert picture.size == (60, 40)
        assert picture.getexif()[0x0112] == 6


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(UnreadableImage("a.jpg", "cut short")))
    assert (error.path, error.reason) == ("a.jpg", "cut short")
    assert str(error) == "cannot read a.jpg: cut short"
    assert isinstance(error, UserError)


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 8, "channels": 4}, {"size": 8.5}])
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="expected") as caught:
        read_image(saved(four_quarters(8, 8), "PNG"), **options)
    assert not isinstance(caught.value, UnreadableImage)
