"""What a table writes over nothing of others: its markdown, its pictures, its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from eigenshot.errors import UserError
from eigenshot.reproduction.curves import write_curve
from eigenshot.reproduction.document import made_by, refuse_anothers
from eigenshot.reproduction.results import curve_file
from eigenshot.reproduction.tablefile import list_tables
from tests.reproduction.miniature import keep, write_miniature
from tests.test_cli import Shell

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", ["README", "readme", "ablation", "Table1-FC100", "!!!"])
def test_a_table_of_ones_own_has_a_name_of_its_own(
    shell: Shell, table: Path, tmp_path: Path, name: str
) -> None:
    own = table.rename(tmp_path / f"{name}.toml")
    for option in ("--results-only", "--dry-run"):
        sentence = shell.refused("reproduce", own, option, "--results", tmp_path)
        assert "name" in sentence
        assert str(own) in sentence


def test_notes_that_are_called_like_a_table_are_not_written_over(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    (tmp_path / "mini.md").write_text("# What I think of it\n")
    sentence = shell.refused("reproduce", table, "--device", "cpu", "--results", tmp_path)
    assert "mini.md' is there already and was not made by 'eigenshot reproduce" in sentence
    assert (tmp_path / "mini.md").read_text() == "# What I think of it\n"
    assert not (tmp_path / "runs").exists(), "it is said before anything is run"


def test_a_table_is_written_over_by_itself(shell: Shell, table: Path, tmp_path: Path) -> None:
    options = ("--results-only", "--results", tmp_path)
    for name in (table, "mini.toml", table):
        assert shell("reproduce", name, *options)[0] == 0
    (tmp_path / "other").mkdir()
    other = write_miniature(tmp_path / "other")
    assert "mini.md' is there already" in shell.refused("reproduce", other, *options)
    table.unlink()
    assert shell("reproduce", other, *options)[0] == 0, "it may be the same, moved"
    other.rename(tmp_path / "mini-1ep.toml")
    assert shell("reproduce", "mini-1ep.toml", *options)[0] == 0
    write_miniature(tmp_path)
    sentence = shell.refused("reproduce", table, *options, "--epochs", 1)
    assert "mini-1ep.md' is there already" in sentence


@pytest.mark.parametrize(
    ("text", "own"),
    [
        (f"# Ablation\n\n{made_by('eigenshot reproduce ablation --results-only')}\n", True),
        (f"# Ablation\n\n{made_by('eigenshot reproduce linear --results-only')}\n", False),
        (f"{made_by('eigenshot reproduce ablation --results-only')}\n\nAnd so on.\n", False),
        ("Made by `eigenshot reproduce 'ablation` from the result files beside this one.\n", False),
        ("", True),
    ],
)
def test_whose_a_document_is_its_last_line_tells(tmp_path: Path, text: str, own: bool) -> None:
    file = tmp_path / "ablation.md"
    refuse_anothers(file, "ablation")
    file.write_text(text)
    if own:
        refuse_anothers(file, "ablation")
    else:
        with pytest.raises(UserError, match="was not made by 'eigenshot reproduce ablation'"):
            refuse_anothers(file, "ablation")


def test_the_tables_that_are_kept_are_known_again() -> None:
    kept = [file for file in RESULTS.glob("*.md") if file.name != "README.md"]
    assert kept
    for file in kept:
        (table,) = (name for name in list_tables() if re.match(rf"{name}(-|$)", file.stem))
        refuse_anothers(file, table)


def with_curve(results: Path) -> None:
    file = curve_file(results, "shapes", keep(results).stem)
    file.parent.mkdir(exist_ok=True)
    write_curve(file, [{"epoch": 1, "probe_accuracy": 40.0}, {"epoch": 2, "probe_accuracy": 41.0}])


def test_a_picture_of_ones_own_is_left_alone(shell: Shell, table: Path, tmp_path: Path) -> None:
    with_curve(tmp_path)
    picture, command = tmp_path / "mini.png", ("reproduce", table, "--results-only")
    picture.write_bytes(b"a photograph")
    code, _, err = shell(*command, "--results", tmp_path)
    assert code == 0
    assert "mini.png' is there already and is no picture of this table: remove it first" in err
    assert picture.read_bytes() == b"a photograph"
    assert "mini.png" not in (tmp_path / "mini.md").read_text()
    picture.unlink()
    for _ in range(2):
        code, _, err = shell(*command, "--results", tmp_path)
        assert (code, "warning" in err) == (0, False)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "mini.png" in (tmp_path / "mini.md").read_text()


def test_its_own_picture_is_known_wherever_the_document_has_lost_it(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    with_curve(tmp_path)
    picture, command = tmp_path / "mini.png", ("reproduce", table, "--results-only")
    assert shell(*command, "--results", tmp_path)[0] == 0
    drawn = picture.read_bytes()
    (tmp_path / "mini.md").unlink()
    picture.write_bytes(drawn)
    code, _, err = shell(*command, "--results", tmp_path)
    assert (code, "warning" in err) == (0, False)
    assert picture.read_bytes() == drawn


def test_a_picture_from_before_they_were_marked_is_known_by_the_document(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    with_curve(tmp_path)
    picture, command = tmp_path / "mini.png", ("reproduce", table, "--results-only")
    assert shell(*command, "--results", tmp_path)[0] == 0
    marked = picture.read_bytes()
    Image.new("RGB", (4, 4)).save(picture)
    assert "warning" not in shell(*command, "--results", tmp_path)[2]
    assert picture.read_bytes() == marked


def test_a_picture_that_cannot_be_written_does_not_lose_the_table(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    with_curve(tmp_path)
    command = ("reproduce", table, "--results-only", "--results", tmp_path)
    assert shell(*command)[0] == 0
    (tmp_path / "mini.png").unlink()
    (tmp_path / "mini.png").mkdir()
    code, _, err = shell(*command)
    assert code == 0
    assert "warning: cannot write the picture" in err
    assert "44.00 ± 0.50" in (tmp_path / "mini.md").read_text()
