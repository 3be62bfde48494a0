"""``eigenshot data`` as a stranger uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from eigenshot.cli_data import data_app
from eigenshot.errors import UserError
from tests.data.parquet_files import picture, write_hub

NAMES = ["cat", "dog"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EIGENSHOT_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(data_app, [str(argument) for argument in arguments])


def refusal(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, UserError)
    assert result.stdout == ""
    return str(result.exception)


def shards(folder: Path, *, leak: bool = False) -> Path:
    train: list[bytes | None] = [picture(row) for row in range(4)]
    test: list[bytes | None] = [picture(0 if leak else 10), picture(11)]
    write_hub(folder / "train-00000-of-00001.parquet", train, [0, 1, 0, 1], NAMES)
    write_hub(folder / "test-00000-of-00001.parquet", test, [0, 1], NAMES)
    return folder


def test_list_says_what_is_here_and_where_the_rest_is_looked_for(data: Path) -> None:
    shards(data / "cifar10")
    shards(data / "stl10")
    (data / "stl10" / "train-00000-of-00001.parquet").rename(
        data / "stl10" / "train-00000-of-00002.parquet"
    )
    result = run("list")
    assert result.exit_code == 0
    table, kept = result.stdout.split("\n\n")
    assert kept.startswith("decoded images: ")
    assert "can be deleted at any time" in kept
    lines = {line.split()[0]: line for line in table.splitlines()}
    assert "embedded" in lines["glyphs"]
    assert f" {data / 'cifar10'} " in lines["cifar10"]
    assert " 0 " in lines["cifar10"]
    assert f"not in {data / 'cifar100'}" in lines["fc100"]
    assert f"incomplete in {data / 'stl10'}" in lines["stl10"]
    assert "Ravi & Larochelle" in lines["miniimagenet"]
    assert len(lines) == 10


def test_list_says_what_may_not_be_read_and_lists_the_rest(
    data: Path, deny: Callable[[Path], None]
) -> None:
    shards(data / "cifar10")
    shards(data / "cifar100")
    deny(data / "cifar100")
    result = run("list")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line}
    for name in ("fc100", "cifar-fs", "cifar100"):
        assert f"cannot list {data / 'cifar100'}: permission denied" in lines[name]
    assert f" {data / 'cifar10'} " in lines["cifar10"]
    assert f"not in {data / 'stl10'}" in lines["stl10"]
    deny(data)
    result = run("list")
    assert result.exit_code == 0
    assert result.stdout.count(f"cannot read '{data}") == len(lines) - 3, "all but the glyphs"
    assert "embedded" in result.stdout


def test_what_may_not_be_read_is_neither_checked_nor_fetched(
    data: Path, deny: Callable[[Path], None]
) -> None:
    shards(data / "cifar100")
    deny(data)
    for command in ("check", "fetch"):
        assert refusal(command, "fc100") == f"cannot read '{data / 'cifar100'}': permission denied"


def test_check_passes_or_ends_with_code_one(tmp_path: Path) -> None:
    result = run("check", shards(tmp_path / "sound"))
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "sound: passes")
    result = run("check", shards(tmp_path / "leaking", leak=True))
    assert result.exit_code == 1
    assert "problem: train and test share 1 picture" in result.stdout


def test_check_of_a_benchmark_compares_it_with_what_was_published(data: Path) -> None:
    shards(data / "cifar10")
    result = run("check", "cifar10", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["passes"] is False
    assert report["splits"][0]["images"] == 4
    assert "train has 4 images, expected 50,000" in report["problems"]


def test_check_refuses_what_it_does_not_know(data: Path) -> None:
    assert "did you mean 'cifar100'" in refusal("check", "cifar-100")
    assert "no files to check" in refusal("check", "glyphs")
    message = refusal("check", "miniimagenet")
    assert "eigenshot data fetch miniimagenet" in message
    assert str(data) in message


def test_fetch_keeps_what_is_here(data: Path) -> None:
    shards(data / "cifar10")
    result = run("fetch", "cifar10")
    assert result.exit_code == 0
    assert result.stdout == f"shards in {data / 'cifar10'}\n"


def test_fetch_of_any_repository_goes_to_a_folder_of_its_own(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shards(tmp_path / "owner" / "name")
    result = run("fetch", "owner/name")
    assert result.exit_code == 0, result.exception
    folder = data / "hub" / "owner--name"
    assert result.stdout == f"shards in {folder}\n"
    assert len(list(folder.glob("*.parquet"))) == 2


def test_fetch_refuses_what_it_does_not_know(data: Path) -> None:
    assert "did you mean 'stl10'" in refusal("fetch", "slt10")
    assert "nothing to fetch" in refusal("fetch", "glyphs")
    assert "not on the hub" in refusal("fetch", "cub-2010")


def test_check_takes_archives_and_hub_repositories(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 4, 4), np.uint8), labels=[0, 1])
    result = run("check", tmp_path / "x.npz")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "x.npz: passes")
    monkeypatch.chdir(tmp_path)
    shards(tmp_path / "owner" / "name")
    result = run("check", "hub:owner/name")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "owner/name: passes")
    assert "owner/name train: 4 images, 2 classes of 2" in result.stdout


def test_a_broken_shard_ends_a_check_with_code_one(tmp_path: Path) -> None:
    folder = shards(tmp_path / "own")
    (folder / "test-00000-of-00001.parquet").write_bytes(b"")
    result = run("check", folder)
    assert result.exit_code == 1
    assert "test-00000-of-00001.parquet is empty" in result.stdout
    assert "own train: 4 images" in result.stdout
