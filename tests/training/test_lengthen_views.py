"""Views that grow in runs that are made longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from eigenshot.errors import UserError
from eigenshot.training.lengthen import lengthened_config
from tests.training.test_lengthen import LONG, SHORT, encoder_of, flat, train

STAGES = ((0.0, 16), (0.4, 20), (0.75, 24), (0.9, 28))


def test_they_grow_when_they_did_and_in_the_fall_at_the_same_share_of_it(tmp_path: Path) -> None:
    train(flat(SHORT, training__resolution=[list(s) for s in STAGES]), tmp_path / "short")
    config = lengthened_config(tmp_path / "short", {"training.epochs": LONG})
    assert config.training.resolution == ((0.0, 16), (0.2, 20), (0.75, 24), (0.9, 28))
    train(config, tmp_path / "longer", lengthen=tmp_path / "short")
    train(config, tmp_path / "anew")
    assert encoder_of(tmp_path / "longer") == encoder_of(tmp_path / "anew")

    shorter_fall = {"training.epochs": LONG, "optimizer.cooldown": 0.125}
    config = lengthened_config(tmp_path / "short", shorter_fall)
    assert config.training.resolution == ((0.0, 16), (0.2, 20), (0.875, 24), (0.95, 28))

    asked = {"training.epochs": LONG, "training.resolution": [[0, 16], [0.1, 20]]}
    config = lengthened_config(tmp_path / "short", asked)
    with pytest.raises(UserError, match=r"20 px from epoch 0\.8 on in the run, .* epoch 0\.4 on"):
        train(config, tmp_path / "other", lengthen=tmp_path / "short")
    assert not (tmp_path / "other").exists()


def test_fewer_epochs_are_told_as_such(tmp_path: Path) -> None:
    train(flat(LONG, training__resolution=[[0, 16], [0.5, 20]]), tmp_path / "short")
    config = lengthened_config(tmp_path / "short", {"training.epochs": 2})
    with pytest.raises(UserError, match="its rate fell from epoch 3 on"):
        train(config, tmp_path / "longer", lengthen=tmp_path / "short")


@pytest.mark.parametrize(
    ("stages", "cooldown", "later", "wanted"),
    [
        ([[0, 20]], 1.0, 0.5, ((0.0, 20),)),
        # The fall begins with the end of the warm-up, at half of the shorter run.
        ([[0, 16], [0.25, 20]], 0.9, 0.9, ((0.0, 16), (0.125, 20))),
        ([[0, 16], [0.75, 20]], 0.9, 0.9, ((0.0, 16), (0.625, 20))),
    ],
)
def test_where_the_warm_up_ends_later_than_the_fall_would_begin(
    tmp_path: Path,
    stages: list[list[float]],
    cooldown: float,
    later: float,
    wanted: tuple[tuple[float, int], ...],
) -> None:
    settings = {
        "training__resolution": stages,
        "optimizer__warmup_epochs": 1.0,
        "optimizer__cooldown": cooldown,
    }
    train(flat(SHORT, **settings), tmp_path / "short")
    asked = {"training.epochs": LONG, "optimizer.cooldown": later}
    config = lengthened_config(tmp_path / "short", asked)
    assert config.training.resolution == wanted
    train(config, tmp_path / "longer", lengthen=tmp_path / "short")
    train(config, tmp_path / "anew")
    assert encoder_of(tmp_path / "longer") == encoder_of(tmp_path / "anew")


def test_where_nothing_falls_any_more_views_keep_the_size_of_before(tmp_path: Path) -> None:
    train(flat(SHORT, training__resolution=[[0, 16], [0.4, 20], [0.9, 28]]), tmp_path / "short")
    asked = {"training.epochs": LONG, "optimizer.cooldown": 0.0}
    config = lengthened_config(tmp_path / "short", asked)
    assert config.training.resolution == ((0.0, 16), (0.2, 20))
