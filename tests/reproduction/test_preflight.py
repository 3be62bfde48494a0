"""What cannot be measured is said before it is trained."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from eigenshot.errors import UserError
from eigenshot.methods import DeepLaplacianEigenmapsMethod
from eigenshot.reproduction.plan import Choices, make_plan
from eigenshot.reproduction.preflight import check_measurable, in_words_of_reproduce
from eigenshot.reproduction.tablefile import read_table
from tests.data.parquet_files import picture, write_hub
from tests.reproduction.miniature import TABLE, table_with, write_miniature
from tests.test_cli import Shell

EVALUATE = 'evaluate = "{folder}/test.npz"'
LINEAR = (
    table_with('measure = "fewshot"\nshots = [1, 5]', 'measure = "linear"')
    .replace(', ""]', "]")
    .replace(', "40.0"', "")
    .replace(', "60.0 ± 0.5"', "")
)


def check(folder: Path, table: str, row: str = "ours", **settings: object) -> None:
    chosen = read_table(str(write_miniature(folder, table)))
    images = np.zeros((8, 28, 28), np.uint8)
    np.savez(folder / "flat.npz", images=images)
    (run,) = make_plan(chosen, Choices(rows=(row,), settings=dict(settings))).runs
    check_measurable(run)


def test_what_is_in_order_passes(tmp_path: Path) -> None:
    check(tmp_path, TABLE)
    check(tmp_path, TABLE, **{"evaluation.select": True})


@pytest.mark.parametrize("picture_folder", [False, True])
def test_images_without_labels(tmp_path: Path, picture_folder: bool) -> None:
    name = "flat" if picture_folder else "flat.npz"
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "one.png").write_bytes(b"")
    with pytest.raises(UserError, match="has no labels; evaluation needs"):
        check(tmp_path, table_with(EVALUATE, f'evaluate = "{{folder}}/{name}"'))


def test_too_few_classes_or_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="7-way episodes need 7 classes, found 6"):
        check(tmp_path, TABLE, **{"evaluation.ways": 7})
    with pytest.raises(
        UserError, match="has 20 images, but 5 shots \\+ 16 queries need 21"
    ) as told:
        check(tmp_path, TABLE, **{"evaluation.queries": 16})
    advice = "as with 5 shots and --set evaluation.queries=15, or leave that class out"
    assert in_words_of_reproduce(str(told.value)).endswith(advice)


def test_one_set_of_images_for_two_purposes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluation\.select and 'evaluate' have the same images"):
        check(tmp_path, table_with(EVALUATE, ""), **{"evaluation.select": True})
    with pytest.raises(UserError, match="'train' and 'evaluate' have the same images"):
        check(tmp_path, LINEAR)
    labelled = table_with('method = "dle"\norder = 1', 'method = "baseline"\norder = 1')
    check(tmp_path, labelled)
    with pytest.raises(UserError, match="the labels of the very images that it is tested on"):
        check(tmp_path, labelled.replace(EVALUATE, ""))


def test_it_is_the_plan_that_says_so_and_nothing_is_trained(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = write_miniature(tmp_path)
    wrong = ("reproduce", table, "--rows", "ours", "--set", "evaluation.ways=7", "--device", "cpu")
    code, out, _ = shell(*wrong, "--dry-run")
    assert code == 0
    assert "cannot be run here" in out
    assert "use --set evaluation.ways=6 or fewer" in out
    code, _, err = shell(*wrong)
    assert code == 1
    assert "use --set evaluation.ways=6 or fewer" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("theirs", "here"),
    [
        ("use --ways 3 or fewer", "use --set evaluation.ways=3 or fewer"),
        ("at most 7 queries (--queries)", "at most 7 queries (--set evaluation.queries=…)"),
        ("use --batch-size 30 or less", "use --set training.batch_size=30 or less"),
        ("with --shots 2 --queries 18", "with 2 shots and --set evaluation.queries=18"),
        (
            "a --batch-size under 128, or a smaller --backbone",
            "a training.batch_size under 128, or a smaller backbone.name",
        ),
        ("--resume goes on from it", "the same command goes on from it"),
        ("--select-on and --data are the same", "evaluation.select and 'evaluate' have the same"),
        ("--train and --test are the same", "'train' and 'evaluate' have the same"),
        ("--force replaces what", "'eigenshot data fetch' with --force replaces what"),
        ("choose another --out", "choose another --runs"),
        ("a folder/--out", "a folder/--out"),
    ],
)
def test_advice_has_the_options_of_the_command(theirs: str, here: str) -> None:
    assert in_words_of_reproduce(theirs) == here


def test_too_large_a_batch_is_refused_with_advice_that_can_be_followed(
    shell: Shell, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(DeepLaplacianEigenmapsMethod, "forward", full)
    code, _, err = shell("reproduce", table, "--rows", "ours", "--device", "cpu")
    assert code == 1
    assert "training.batch_size under 32, or a smaller backbone.name" in err
    assert not re.search("--(batch-size|backbone)", err)


def test_a_single_split_is_one_set_of_images(tmp_path: Path) -> None:
    contents, labels = [picture(row) for row in range(120)], [row % 6 for row in range(120)]
    write_hub(tmp_path / "own" / "train-00000-of-00001.parquet", contents, labels, "abcdef")
    own = TABLE.replace("{folder}/train.npz", "{folder}/own").replace(EVALUATE, "")
    check(tmp_path, own)
    labelled = own.replace('method = "dle"\norder = 1', 'method = "baseline"\norder = 1')
    with pytest.raises(UserError, match="the labels of the very images that it is tested on"):
        check(tmp_path, labelled)
    with pytest.raises(UserError, match=r"evaluation\.select and 'evaluate' have the same images"):
        check(tmp_path, own, **{"evaluation.select": True})


def test_a_repository_that_is_not_here_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*arguments: object, **options: object) -> None:
        raise AssertionError("nothing is to be fetched")

    monkeypatch.setattr("eigenshot.data.naming.fetch", fetch)
    monkeypatch.setenv("EIGENSHOT_DATA", str(tmp_path / "data"))
    check(tmp_path, table_with("{folder}/train.npz", "hub:someone/birds"))


def test_classes_that_a_linear_classifier_does_not_learn(tmp_path: Path) -> None:
    images, labels = np.zeros((6, 28, 28), np.uint8), np.arange(6)
    for name, classes in (("known", "abcdef"), ("other", "ghijkl")):
        np.savez(tmp_path / f"{name}.npz", images=images, labels=labels, class_names=list(classes))
    evaluate = EVALUATE.replace("test.npz", "other.npz") + '\ntrain = "{folder}/known.npz"'
    with pytest.raises(UserError, match="test class 'g' is not among the training classes"):
        check(tmp_path, LINEAR.replace(EVALUATE, evaluate))
