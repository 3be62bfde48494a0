"""Features once: the same content is not computed twice, and nothing damaged is believed."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from eigenshot.data.reading.streamed import StreamedSource
from eigenshot.data.source import ArraySource
from eigenshot.encoder import Encoder, Preprocessing, load_encoder
from eigenshot.errors import UserError
from eigenshot.evaluation.features import KIND, encoder_digest, extract_features
from eigenshot.networks import as_backbone
from eigenshot.reporter import Reporter
from eigenshot.tensorfile import read_tensors, write_tensors
from tests.data.list_table import ListTable, noise_pngs
from tests.test_encoder import pictures, small_encoder


class Listener(Reporter):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.counted: list[tuple[str, int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def counting(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self.counted.append((what, done, total))


@contextlib.contextmanager
def counted_forwards(encoder: Encoder) -> Iterator[list[int]]:
    """A list that grows by one whenever the backbone runs."""
    runs: list[int] = []
    handle = encoder.backbone.register_forward_hook(lambda *_: runs.append(1))
    yield runs
    handle.remove()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of cached features, empty at first."""
    monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def entries(cache: Path) -> list[Path]:
    return sorted(cache.iterdir()) if cache.is_dir() else []


class TestCache:
    def test_the_second_call_runs_no_network_and_says_so(self, cache: Path) -> None:
        encoder, source, listener = small_encoder(), ArraySource.from_array(pictures()), Listener()
        with counted_forwards(encoder) as runs:
            first = extract_features(encoder, source, batch_size=2, reporter=listener)
            assert len(runs) == 3
            assert listener.notes == []
            assert listener.counted == [("features", n, 5) for n in (2, 4, 5)]
            second = extract_features(encoder, source, reporter=listener)
            assert len(runs) == 3
        assert first.dtype == np.float32
        np.testing.assert_array_equal(second, first)
        np.testing.assert_array_equal(first, encoder.transform(source, batch_size=2))
        (entry,) = entries(cache)
        (note,) = listener.notes
        assert "array taken from the cache" in note
        assert f"{cache}{os.sep}{entry.name[:8]}…" in note
        with entry.open("r+b") as handle:  # what was read is the caller's, not the mapped file
            handle.seek(-8, os.SEEK_END)
            handle.write(b"\xff" * 8)
        np.testing.assert_array_equal(second, first)
        second[:] = 0
        np.testing.assert_array_equal(extract_features(encoder, source, batch_size=2), first)

    def test_a_reloaded_encoder_and_equal_pixels_share_an_entry(
        self, cache: Path, tmp_path: Path
    ) -> None:
        encoder = small_encoder()
        extract_features(encoder, pictures())
        again = load_encoder(encoder.save(tmp_path / "e.safetensors"))
        again.provenance = {"another": "story"}
        with counted_forwards(again) as runs:
            extract_features(again, ArraySource.from_array(pictures(), name="other"))
        assert not runs
        assert len(entries(cache)) == 1

    def test_a_stream_is_never_cached_since_its_files_may_change_unseen(self, cache: Path) -> None:
        encoder = small_encoder()
        size, channels = encoder.preprocessing.image_size, encoder.preprocessing.channels
        table = ListTable(noise_pngs(3))
        with StreamedSource(table, size=size, channels=channels, window=3) as source:
            extract_features(encoder, source)
        assert entries(cache) == []

    def test_without_the_cache_nothing_is_read_or_written(self, cache: Path) -> None:
        encoder = small_encoder()
        extract_features(encoder, pictures(), cache=False)
        assert entries(cache) == []
        extract_features(encoder, pictures())
        with counted_forwards(encoder) as runs:
            extract_features(encoder, pictures(), cache=False)
        assert runs

    def test_features_are_those_of_eval_mode_and_the_mode_is_given_back(self) -> None:
        encoder = small_encoder()
        encoder.backbone.train()
        features = extract_features(encoder, pictures())
        assert encoder.backbone.training
        np.testing.assert_array_equal(features, small_encoder().transform(pictures()))

    def test_a_batch_size_that_would_compute_nothing(self) -> None:
        with pytest.raises(UserError, match="batch size of at least 1, found -1"):
            extract_features(small_encoder(), pictures(), batch_size=-1)

    def test_a_user_s_own_code_is_not_cached(self, cache: Path) -> None:
        class Scale(nn.Module):
            factor = 1.0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.mean(dim=(2, 3)) * self.factor

        preprocessing = Preprocessing(16, 3, (0.0,) * 3, (1.0,) * 3)
        module = Scale()
        encoder = Encoder(as_backbone(module), preprocessing, {"name": "custom", "options": {}})
        one = extract_features(encoder, pictures())
        module.factor = 2.0  # no weight tells of it
        np.testing.assert_allclose(extract_features(encoder, pictures()), 2 * one)
        assert entries(cache) == []


class TestKey:
    def test_the_precision_is_part_of_it_as_it_was_settled(self, cache: Path) -> None:
        encoder = small_encoder()
        extract_features(encoder, pictures())
        with counted_forwards(encoder) as runs:
            extract_features(encoder, pictures(), precision="float32")
        assert not runs
        (entry,) = entries(cache)
        assert read_tensors(entry, kind=KIND)[1]["precision"] == "float32"
        with pytest.raises(UserError, match="bf16 needs a GPU"):
            extract_features(encoder, pictures(), precision="bf16")

    def test_whatever_decides_the_features_makes_another_entry(self, cache: Path) -> None:
        encoder, images = small_encoder(), pictures()
        extract_features(encoder, images)

        def makes_another(changed: Encoder, pixels: np.ndarray = images) -> bool:
            before = len(entries(cache))
            with counted_forwards(changed) as runs:
                result = extract_features(changed, pixels)
            np.testing.assert_array_equal(result, changed.transform(pixels))
            return len(entries(cache)) == before + 1 and len(runs) == 1

        weight = small_encoder()
        with torch.no_grad():
            weight.backbone.stages[2][0].weight.view(-1)[7].add_(1e-6)
        assert makes_another(weight)
        statistics = small_encoder()
        statistics.backbone.stages[0][1].running_var[1] = 2.0
        assert makes_another(statistics)
        activation = small_encoder()
        activation.backbone.stages[3][3] = nn.ELU()
        assert makes_another(activation)
        slope = small_encoder()
        slope.backbone.stages[3][3] = nn.ELU(alpha=0.5)
        assert makes_another(slope)
        for field, value in (("mean", (0.5, 0.4, 0.31)), ("std", (0.2, 0.21, 0.2))):
            other = small_encoder()
            other.preprocessing = dataclasses.replace(other.preprocessing, **{field: value})
            assert makes_another(other)
        pixels = images.copy()
        pixels[3, 4, 5, 1] ^= 1
        assert makes_another(encoder, pixels)
        assert makes_another(encoder, images[::-1])
        assert not makes_another(small_encoder())

    def test_the_digest_is_of_content_not_of_memory(self) -> None:
        digest = encoder_digest(small_encoder())
        assert digest == encoder_digest(small_encoder())
        assert len(digest) == 32
        last = small_encoder()
        last.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        assert not last.backbone.stages[1][0].weight.is_contiguous()
        assert encoder_digest(last) == digest
        renamed = small_encoder()
        renamed.architecture = {"name": "conv4", "options": {"widths": [4, 4, 6, 6]}}
        assert encoder_digest(renamed) != digest
        sized = small_encoder()
        sized.preprocessing = dataclasses.replace(sized.preprocessing, image_size=32)
        assert encoder_digest(sized) != digest

    def test_the_digest_knows_which_tensor_and_which_type_a_value_is_of(self) -> None:
        one, other = small_encoder(), small_encoder()
        for encoder, (first, second) in ((one, (1.0, 2.0)), (other, (2.0, 1.0))):
            nn.init.constant_(encoder.backbone.stages[0][1].weight, first)
            nn.init.constant_(encoder.backbone.stages[0][1].bias, second)
        assert encoder_digest(one) != encoder_digest(other)
        one, other = small_encoder(), small_encoder()
        one.backbone.register_buffer("same_bytes", torch.zeros(3, dtype=torch.float32))
        other.backbone.register_buffer("same_bytes", torch.zeros(3, dtype=torch.int32))
        assert encoder_digest(one) != encoder_digest(other)

    @pytest.mark.gpu
    def test_the_device_is_in_the_key_and_not_in_the_digest(self, cache: Path) -> None:
        encoder = small_encoder()
        digest = encoder_digest(encoder)
        extract_features(encoder, pictures())
        extract_features(encoder, pictures(), device="cuda")
        assert encoder_digest(encoder) == digest
        assert len(entries(cache)) == 2


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def flip_last_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def rewrite(**changes: Any) -> Callable[[Path], None]:
    """A whole and checksummed entry that says something else."""

    def damage(file: Path) -> None:
        tensors, header = read_tensors(file, kind=KIND)
        copy = {name: tensor.clone() for name, tensor in tensors.items()}
        kind = changes.get("kind", KIND)
        header.update(changes.get("header", {}))
        write_tensors(file, changes.get("change", lambda t: t)(copy), header, kind=kind)

    return damage


class TestDamage:
    @pytest.mark.parametrize(
        "damage",
        [
            truncate,
            empty,
            flip_last_byte,
            rewrite(change=lambda t: {"features": t["features"][:-1]}),
            rewrite(change=lambda t: {"features": t["features"].double()}),
            rewrite(change=lambda t: {"other": t["features"]}),
            rewrite(header={"source": "of other images"}),
            rewrite(kind="eigenshot-encoder"),
        ],
        ids=["truncated", "empty", "altered", "rows", "dtype", "name", "identity", "kind"],
    )
    def test_an_entry_that_is_not_right_is_computed_again(
        self, cache: Path, damage: Callable[[Path], None]
    ) -> None:
        encoder, listener = small_encoder(), Listener()
        first = extract_features(encoder, pictures())
        (file,) = entries(cache)
        whole = file.read_bytes()
        damage(file)
        assert file.read_bytes() != whole
        with counted_forwards(encoder) as runs:
            again = extract_features(encoder, pictures(), reporter=listener)
        assert len(runs) == 1
        np.testing.assert_array_equal(again, first)
        assert len(listener.notes) == 1
        assert "damaged; computing it again" in listener.notes[0]
        assert file.read_bytes() == whole  # mended


class TestUnwritable:
    def check(self, expected: str) -> None:
        encoder, listener = small_encoder(), Listener()
        features = extract_features(encoder, pictures(), reporter=listener)
        np.testing.assert_array_equal(features, encoder.transform(pictures()))
        (note,) = listener.notes
        assert "not kept in the cache" in note
        assert expected in note

    def test_a_file_where_the_folder_should_be(self, cache: Path) -> None:
        cache.parent.mkdir()
        cache.write_text("in the way")
        self.check("exists")

    def test_a_folder_where_the_entry_should_be(self, cache: Path) -> None:
        extract_features(small_encoder(), pictures())
        (file,) = entries(cache)
        file.unlink()
        (file / "inner").mkdir(parents=True)
        listener = Listener()
        features = extract_features(small_encoder(), pictures(), reporter=listener)
        assert features.shape == (5, 6)
        assert "not kept in the cache" in listener.notes[-1]

    @pytest.mark.skipif(
        getattr(os, "geteuid", lambda: 0)() == 0, reason="root writes to read-only folders"
    )
    def test_a_read_only_folder(self, cache: Path) -> None:
        cache.mkdir(parents=True)
        cache.chmod(0o500)
        self.check("permission denied")

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
    def test_a_full_or_read_only_disk(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        @contextlib.contextmanager
        def refuse(path: Path) -> Iterator[None]:
            raise OSError(code, os.strerror(code))
            yield

        monkeypatch.setattr("eigenshot.tensorfile.atomic_write", refuse)
        self.check(os.strerror(code).lower())
        assert entries(cache) == []

    def test_no_home_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def homeless() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("EIGENSHOT_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", homeless)
        self.check("no home folder")


class TestBound:
    @pytest.fixture
    def limit(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
        """Sets the bound in bytes."""
        return lambda size: monkeypatch.setenv("EIGENSHOT_CACHE_LIMIT_MB", str(size / 2**20))

    @staticmethod
    def source(seed: int) -> ArraySource:
        shape = (200, 16, 16, 3)
        pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
        return ArraySource.from_array(pixels)

    def test_the_least_recently_used_go_first(
        self, cache: Path, limit: Callable[[float], None]
    ) -> None:
        encoder = small_encoder()
        files: list[Path] = []
        for seed in range(3):
            extract_features(encoder, self.source(seed))
            (new,) = set(entries(cache)) - set(files)
            files.append(new)
            os.utime(new, (1000 + seed, 1000 + seed))
        size = files[0].stat().st_size
        extract_features(encoder, self.source(0))  # used again: now the youngest
        limit(3.9 * size)
        extract_features(encoder, self.source(3))
        kept = entries(cache)
        assert files[0] in kept
        assert files[1] not in kept
        assert sum(file.stat().st_size for file in kept) <= 3.9 * size

    def test_what_is_larger_than_the_bound_is_not_kept(
        self, cache: Path, limit: Callable[[float], None]
    ) -> None:
        limit(2000)
        listener = Listener()
        assert extract_features(small_encoder(), self.source(0), reporter=listener).any()
        assert entries(cache) == []
        assert "more than EIGENSHOT_CACHE_LIMIT_MB" in listener.notes[0]

    def test_only_old_leftovers_are_swept_and_no_strange_file(
        self, cache: Path, limit: Callable[[float], None]
    ) -> None:
        cache.mkdir(parents=True)
        for name in (".a.safetensors.killed", ".b.safetensors.written-now", "README"):
            (cache / name).write_bytes(b"x" * 9000)
        os.utime(cache / ".a.safetensors.killed", (time.time() - 1e5,) * 2)
        os.utime(cache / "README", (0, 0))
        limit(10_000)
        extract_features(small_encoder(), self.source(0))
        names = [file.name for file in entries(cache)]
        assert names[0] == ".b.safetensors.written-now"
        assert "README" in names
        assert len(names) == 3

    @pytest.mark.parametrize("text", ["much", "-1", "nan"])
    def test_a_bound_that_is_no_size(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EIGENSHOT_CACHE_LIMIT_MB", text)
        encoder = small_encoder()
        with (
            counted_forwards(encoder) as runs,
            pytest.raises(UserError, match=f"number of MiB, 0 to keep nothing, found '{text}'"),
        ):
            extract_features(encoder, pictures())
        assert not runs
