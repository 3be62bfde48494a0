"""A result is that of its images and of what was measured, not of its settings alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from eigenshot.reproduction.library import Library
from eigenshot.reproduction.plan import Choices, PlannedRun, make_plan
from eigenshot.reproduction.results import differences, read_result
from eigenshot.reproduction.session import result_of
from eigenshot.reproduction.table import Part
from tests.reproduction.miniature import keep, made_up, miniature
from tests.reproduction.test_session import Bench

PART = Part("Birds", "birds", "tiny", "fewshot", (1, 5), evaluate="labelled", train="labelled")


def changed(run: PlannedRun, **part: Any) -> PlannedRun:
    return dataclasses.replace(run, part=dataclasses.replace(run.part, **part))


def planned(tmp_path: Path) -> PlannedRun:
    (run,) = make_plan(miniature(tmp_path), Choices(rows=("ours",))).runs
    return run


def test_the_images_of_a_part_go_by_their_names() -> None:
    assert PART.images == {"data": "birds", "evaluate": "labelled"}
    linear = dataclasses.replace(PART, measure="linear", shots=(), train="known/")
    assert linear.images == {"data": "birds", "evaluate": "labelled", "train": "known"}
    others = [dataclasses.replace(PART, data=name).images for name in ("a/train", "b/train")]
    assert others[0] != others[1]


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({}, []),
        ({"data": "broken"}, ["data was birds, is broken"]),
        ({"evaluate": "grey"}, ["evaluate was labelled, is grey"]),
        ({"shots": (5,)}, []),
        ({"shots": (1, 3)}, ["shots were 1, 5, are 1, 3"]),
        ({"measure": "linear", "shots": ()}, ["measure was fewshot, is linear"]),
    ],
)
def test_what_differs_is_told(tmp_path: Path, part: dict[str, Any], found: list[str]) -> None:
    run = changed(planned(tmp_path), data="birds", evaluate="labelled")
    result = made_up(images=run.part.images)
    assert differences(result, run.config, changed(run, **part).part) == found


def test_an_older_result_says_nothing_of_its_images(tmp_path: Path) -> None:
    run = planned(tmp_path)
    assert differences(made_up(), run.config, changed(run, data="broken").part) == []


def test_names_are_kept_with_a_result(tmp_path: Path) -> None:
    kept = read_result(keep(tmp_path, images={"data": "birds", "evaluate": "labelled"}))
    assert kept.images == {"data": "birds", "evaluate": "labelled"}


def test_other_test_images_are_measured_anew_and_the_training_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (run,) = bench.runs("short")
    bench((run,))
    encoder = bench.places.folder(run) / "encoder.safetensors"
    written = encoder.stat().st_mtime_ns
    (tmp_path / "others.npz").write_bytes((tmp_path / "test.npz").read_bytes())
    other = changed(run, evaluate=str(tmp_path / "others.npz"))
    library = Library(bench.places.results)
    assert result_of(run, library) is not None
    assert result_of(other, library) is None
    assert bench((other,)).finished == 1
    assert encoder.stat().st_mtime_ns == written
    library = Library(bench.places.results)
    names = [result_of(one, library).images["evaluate"] for one in (run, other)]  # type: ignore[union-attr]
    assert [name.partition("-")[0] for name in names] == ["test", "others"]


def test_other_shots_are_measured_and_then_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (run,) = bench.runs("short")
    bench((run,))
    other = changed(run, shots=(1, 3))
    assert bench((other,)).finished == 1
    assert bench((run, other)).finished == 0
    measured = result_of(other, Library(bench.places.results))
    assert measured is not None
    assert list(measured.fewshot) == ["1", "3"]
