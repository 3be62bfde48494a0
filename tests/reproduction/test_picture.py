"""The picture of a table's learning curves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eigenshot.errors import CorruptFileError
from eigenshot.reports.curves_picture import Curve, draw_curves
from eigenshot.reproduction.curves import read_curve, write_curve
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.picture import shown_run
from eigenshot.reproduction.plan import Choices, settled
from tests.reproduction.miniature import keep, miniature, table_with, write_miniature
from tests.test_cli import Shell


def colours(file: Path) -> set[tuple[int, ...]]:
    pixels = np.asarray(Image.open(file).convert("RGB")).reshape(-1, 3)
    return {tuple(map(int, colour)) for colour in np.unique(pixels, axis=0)}


def test_every_curve_is_drawn_in_its_own_colour(tmp_path: Path) -> None:
    file = tmp_path / "curves.png"
    curves = [Curve("one", [1, 2, 3], [20.0, 30.0, 35.0], 0), Curve("two", [3], [40.0], 1)]
    draw_curves(file, curves, title="Two", measure="accuracy, %")
    assert {(0x1F, 0x5F, 0xA8), (0xC8, 0x10, 0x2E)} <= colours(file)

    draw_curves(file, curves[1:], title="The second alone", measure="accuracy, %")
    assert {(0x1F, 0x5F, 0xA8), (0xC8, 0x10, 0x2E)} & colours(file) == {(0xC8, 0x10, 0x2E)}


def test_a_table_with_probes_has_its_curves_beside_it(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = write_miniature(tmp_path)
    probe = f"--set=probe.data={tmp_path / 'test.npz'}"
    arguments = ("reproduce", table, "--device", "cpu", "--rows", "ours,rival", probe)
    code, _, err = shell(*arguments, "--set", "probe.kind=fewshot")
    assert code == 0, err
    (picture,) = (tmp_path / "results").glob("*.png")
    (markdown,) = (tmp_path / "results").glob("*.md")
    assert f"![Learning curves]({picture.name})" in markdown.read_text()
    assert {(0x1F, 0x5F, 0xA8), (0xC8, 0x10, 0x2E)} <= colours(picture), "one for each row"

    drawn = picture.read_bytes()
    (first,) = (tmp_path / "results" / "shapes" / "curves").glob("*rival*.json")
    kept = first.rename(tmp_path / "kept.json")
    assert shell(*arguments, "--set", "probe.kind=fewshot", "--results-only")[0] == 0
    found = {(0x1F, 0x5F, 0xA8), (0xC8, 0x10, 0x2E)} & colours(picture)
    assert found == {(0xC8, 0x10, 0x2E)}, "a row keeps its colour without the others"
    kept.rename(first)
    assert shell(*arguments, "--set", "probe.kind=fewshot", "--results-only")[0] == 0
    assert picture.read_bytes() == drawn

    (curve, *_) = sorted((tmp_path / "results" / "shapes" / "curves").glob("*.json"))
    curve.write_text("{")
    code, _, err = shell(*arguments, "--set", "probe.kind=fewshot", "--results-only")
    assert code == 0
    assert "holds no learning curve that can be read" in err


def test_rows_of_one_training_share_a_curve(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mixup = 'method.options.mixup = "none"'
    table = write_miniature(tmp_path, table_with(mixup, "evaluation.C = 2.0"))
    probe = f"--set=probe.data={tmp_path / 'test.npz'}"
    arguments = ("reproduce", table, "--device", "cpu", "--rows", "ours,rival", probe)
    assert shell(*arguments, "--set", "probe.kind=fewshot")[0] == 0
    assert len(list((tmp_path / "results" / "shapes").glob("*.json"))) == 2
    assert len(list((tmp_path / "runs").rglob("encoder.safetensors"))) == 1
    (picture,) = (tmp_path / "results").glob("*.png")
    found = {(0x1F, 0x5F, 0xA8), (0xC8, 0x10, 0x2E)} & colours(picture)
    assert len(found) == 1

    # What one row has of more epochs is another curve.
    longer = ("--set", "probe.kind=fewshot", "--epochs", "3")
    assert shell(*arguments[:4], "--rows", "rival", probe, *longer)[0] == 0
    probed = (probe, "--set", "probe.kind=fewshot", "--results-only")
    assert shell("reproduce", table, *probed)[0] == 0
    assert {(0x1F, 0x5F, 0xA8), (0xC8, 0x10, 0x2E)} <= colours(picture)


def test_a_row_is_drawn_as_it_would_be_run_now(tmp_path: Path) -> None:
    table = miniature(tmp_path)
    row, part, choices = table.row("ours"), table.parts[0], Choices()
    now = settled(table, row, part, choices, 0).to_dict()
    before = {**now, "optimizer": {**now["optimizer"], "lr": 9.0}}
    keep(tmp_path, variant="tiny+00000000", config=before)
    kept = keep(tmp_path, variant="tiny", config=now)
    keep(tmp_path, variant="tiny+11111111", config=before)
    for expected in ("tiny", "tiny+00000000"):
        shown = shown_run(table, row, part, choices, Library(tmp_path))
        assert shown is not None
        assert shown.variant == expected
        kept.unlink(missing_ok=True)
    assert shown_run(table, table.row("rival"), part, choices, Library(tmp_path)) is None


def test_without_probes_there_is_no_picture(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = write_miniature(tmp_path)
    assert shell("reproduce", table, "--device", "cpu", "--rows", "short")[0] == 0
    assert not list((tmp_path / "results").glob("*.png"))


def test_a_curve_is_read_as_it_was_written(tmp_path: Path) -> None:
    records = [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.5, "probe_accuracy": 40.0}]
    file = tmp_path / "curve.json"
    write_curve(file, records)
    expected = {"epoch": [1, 2], "loss": [2.0, 1.5], "probe_accuracy": [None, 40.0]}
    assert read_curve(file) == expected
    for damaged in ([1], {"epoch": 1}, {"epoch": ["one"]}):
        file.write_text(json.dumps(damaged))
        with pytest.raises(CorruptFileError, match="holds no learning curve that can be read; rem"):
            read_curve(file)
