"""Settings: read, checked, overridden, written back."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
import torch

from eigenshot.config import Config, differences, flatten
from eigenshot.configfile import (
    config_from_table,
    list_recipes,
    load_config,
    method_table,
    parse_override,
    to_toml,
)
from eigenshot.data.views.views import create_view
from eigenshot.errors import UserError
from eigenshot.methods import create_method, list_methods
from eigenshot.networks import Projector, create_backbone
from eigenshot.training.setup import check_parts


def test_the_promised_recipes_are_there() -> None:
    expected = {"glyphs", "folder", "fc100", "miniimagenet", "miniimagenet-wrn"}
    assert expected | {"cifar10", "cifar100", "stl10"} <= set(list_recipes())


def test_what_served_on_cifar10_is_one_set_of_settings() -> None:
    """CIFAR-100 and STL-10 have what was found on CIFAR-10, over their own recipes.

    The sizes of views count in sides of an image, which are of 96 pixels on STL-10.
    """

    def changes(name: str) -> dict[str, object]:
        plain, best = (flatten(load_config(n).to_dict()) for n in (name, f"{name}-best"))
        found = {k: v for k, v in best.items() if k != "recipe" and v != plain.get(k)}
        side = plain["data.image_size"]
        return found | {
            "training.resolution": [(at, px / side) for at, px in best["training.resolution"]]
        }

    found = changes("cifar10")
    assert found["optimizer.warmup_epochs"]
    assert changes("cifar100") == found
    assert changes("stl10") == found


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_builds(name: str) -> None:
    """Options inside a recipe are checked when the parts are made, so make them."""
    config = load_config(name)
    for own in (config.augment.view_a, config.augment.view_b):
        options = {**config.augment.options, **own}
        create_view(config.augment.kind, options, size=32, mean=[0.5], std=[0.5])
    backbone_name = "resnet12" if config.backbone.name == "auto" else config.backbone.name
    with torch.device("meta"):
        backbone = create_backbone(backbone_name, **config.backbone.options)
        projector = Projector(backbone.out_features, layers=2, width=8)
        create_method(config.method.name, backbone, projector, **config.method.options)


@pytest.mark.parametrize("name", ["fc100", "miniimagenet", "cifar10", "cifar100", "stl10"])
def test_what_the_paper_states_stands_in_the_recipes(name: str) -> None:
    config = load_config(name)
    assert (config.optimizer.lr, config.optimizer.momentum) == (0.05, 0.9)
    assert config.optimizer.weight_decay == 5e-4
    assert config.optimizer.warmup_epochs == 0  # "the learning rate starts at 0.05"
    assert (config.projector.layers, config.projector.width) == (3, 2048)
    few_shot = name in ("fc100", "miniimagenet")
    assert config.training.batch_size == (128 if few_shot else 256)
    assert config.backbone.name == ("resnet12" if few_shot else "resnet18")
    assert few_shot or config.training.epochs == 800


def test_written_and_read_back_it_is_the_same() -> None:
    config = load_config("folder", ['probe.data=a "quoted" \\ name', "data.mean=[0.1, 0.2, 0.3]"])
    assert config_from_table(tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("text", ["a\rb", "tab\t", 'quote"', "back\\slash", "\x00\x1b\x7f", "π\n"])
def test_every_text_is_read_back(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        to_toml(load_config("glyphs", {"probe.data": text})), encoding="utf-8", newline=""
    )
    assert load_config(str(tmp_path / "config.toml")).probe.data == text


def test_a_run_s_own_config_serves_as_a_recipe(tmp_path: Path) -> None:
    config = load_config("glyphs", {"training.epochs": 3})
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(config))
    assert load_config(str(file)) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer.lr=0.1", ("optimizer.lr", 0.1)),
        ("a.b = [1, 2]", ("a.b", [1, 2])),
        ("a=true", ("a", True)),
        ("probe.data=/some/folder", ("probe.data", "/some/folder")),
        ("x=a=b", ("x", "a=b")),
    ],
)
def test_overrides_are_toml_or_text(text: str, expected: tuple[str, object]) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lrr=0.1", "unknown setting 'optimizer.lrr'; did you mean 'optimizer.lr'"),
        ("optimiser.lr=0.1", "unknown setting 'optimiser'; did you mean 'optimizer.lr'"),
        ("trainign.epochs=2", "unknown setting 'trainign'; did you mean 'training.epochs'"),
        ("training.epochs=two", "training.epochs: expected a whole number, found 'two'"),
        ("training.epochs=1.5", "training.epochs: expected a whole number, found 1.5"),
        ("training.epochs=0", "training.epochs must be at least 1, found 0"),
        ("optimizer.lr=-1", "optimizer.lr must be at least 0, found -1.0"),
        ("optimizer.lr=nan", "optimizer.lr must be finite, found nan"),
        ("training.batch_size=1", "training.batch_size must be at least 2"),
        ("training.batch_size=some", "expected a whole number or 'auto', found 'some'"),
        ("data.channels=2", "data.channels: expected 1 or 3, found 2"),
        ("data.mean=[0.5]", "one value for each of 3 channels, found 1"),
        ("data.std=[0.5, 0.5, 0]", "data.std must be positive"),
        ("optimizer=3", "'optimizer' is a section, found 3"),
        ("recipe.lr=3", "'recipe.lr' cannot be set: 'recipe' is no section"),
        ("epochs", "--set takes key=value"),
    ],
)
def test_what_is_wrong_is_said(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config("folder", [override])


def test_unknown_recipes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown recipe 'fc10'; did you mean 'fc100'"):
        load_config("fc10")
    with pytest.raises(UserError, match="no such recipe file"):
        load_config(str(tmp_path / "none.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("[data\n")
    with pytest.raises(UserError, match="is not valid TOML"):
        load_config(str(broken))


def test_recipes_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deny: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("binary.toml").write_bytes(b"\xff\xfe")
    Path("one.toml").write_text('base = "two.toml"')
    Path("two.toml").write_text('base = "one.toml"')
    for name, words in (
        ("binary.toml", "is no text in UTF-8"),
        ("one.toml", "'one.toml' is its own base: one.toml → two.toml → one.toml"),
    ):
        with pytest.raises(UserError, match=words):
            load_config(name)
    Path("secret.toml").write_text("")
    deny(Path("secret.toml"))
    with pytest.raises(UserError, match=r"cannot read 'secret\.toml': permission denied"):
        load_config("secret.toml")


def test_differences_name_what_changes_the_result_and_nothing_else() -> None:
    one = load_config("glyphs")
    other = load_config(
        "glyphs",
        ["optimizer.lr=0.3", "method.options.alpha=0.2", "checkpoint.every_steps=5"],
    )
    found = differences(one, other)
    assert [text.split(":")[0] for text in found] == ["method.options.alpha", "optimizer.lr"]
    assert f"{one.optimizer.lr} in the run, 0.3 asked" in found[1]
    assert differences(one, one) == []
    assert isinstance(one, Config)


def test_another_backbone_or_method_does_not_inherit_options() -> None:
    assert "widths" in load_config("glyphs").backbone.options
    assert load_config("glyphs", ["backbone.name=resnet12"]).backbone.options == {}
    changed = load_config("glyphs", ["method.options.scale=2", "method.name=my.module:Mine"])
    assert changed.method.options == {"scale": 2}
    assert load_config("glyphs", ["method.name=dle"]).method.options["k_gamma"] == 0.02


def test_another_method_brings_its_own_head_and_options(tmp_path: Path) -> None:
    plain = load_config("fc100")
    other = load_config("fc100", {"method.name": "simclr"})
    own = method_table("simclr")
    assert own["projector"]["out"] == other.projector.out == 128
    assert other.method.options == own["method"]["options"]
    assert (other.optimizer, other.augment, other.backbone, other.training) == (
        plain.optimizer,
        plain.augment,
        plain.backbone,
        plain.training,
    )
    # The recipe's own method stays as the recipe has it, and what is asked for comes last.
    assert load_config("glyphs", {"method.name": "dle"}) == load_config("glyphs")
    asked = load_config("fc100", {"method.name": "simclr", "projector.out": 64})
    assert asked.projector.out == 64
    # A recipe that is based on another may change the method too.
    recipe = tmp_path / "mine.toml"
    recipe.write_text('base = "fc100"\n[method]\nname = "simclr"\n[optimizer]\nlr = 0.3\n')
    based = load_config(str(recipe))
    assert (based.method, based.projector) == (other.method, other.projector)
    assert based.optimizer.lr == 0.3


def test_every_methods_file_is_of_a_known_method_and_valid() -> None:
    folder = resources.files("eigenshot") / "recipes" / "methods"
    names = {entry.name.removesuffix(".toml") for entry in folder.iterdir()}
    assert names == set(list_methods())
    for name in names:
        config = load_config("fc100", {"method.name": name})
        assert config.method.name == name
        check_parts(config, own_backbone=False)


def test_to_set_one_of_two_ways_to_say_a_thing_replaces_the_other(tmp_path: Path) -> None:
    assert load_config("fc100").method.options["gamma"] == 1e-5
    asked = load_config("fc100", ["method.options.k_gamma=0.05"]).method.options
    assert asked["k_gamma"] == 0.05
    assert "gamma" not in asked
    assert asked["mixup"] == "manifold"
    own = tmp_path / "own.toml"
    own.write_text('base = "folder"\n[method]\noptions = { gamma = 1e-4 }\n')
    assert "k_gamma" not in load_config(str(own)).method.options
    assert load_config(str(own), ["method.options.k_gamma=1"]).method.options["k_gamma"] == 1
    both = ["method.options.gamma=1", "method.options.k_gamma=1"]
    assert {"gamma", "k_gamma"} <= load_config("fc100", both).method.options.keys()  # and refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "glyphs"\nmethod = "dle"', "'method' is a section, found 'dle'"),
        ('base = "glyphs"\n[method]\noptions = 5', "method.options"),
        ('method = "dle"', "'method' is a section, found 'dle'"),
    ],
)
def test_a_section_that_is_none_is_told(tmp_path: Path, text: str, message: str) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text)
    with pytest.raises(UserError, match=message):
        load_config(str(own))
    with pytest.raises(UserError, match="cannot be set"):
        load_config(str(own), ["method.options.gamma=1"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer.lr=inf", "optimizer.lr must be finite, found inf"),
        ("optimizer.warmup_epochs=nan", "optimizer.warmup_epochs must be finite, found nan"),
        ("data.mean=[nan, 0, 0]", "data.mean must be finite"),
        ("optimizer.momentum=1", "optimizer.momentum must be below 1, found 1.0"),
        ("evaluation.C=1e12", r"evaluation.C must lie between 1e-10 and 1e\+10, found 1e\+12"),
        ("evaluation.linear_lr=0", "evaluation.linear_lr must be positive, found 0.0"),
    ],
)
def test_numbers_that_nothing_can_be_done_with_are_refused(setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config("fc100", [setting])


def test_settings_made_in_python_are_held_to_the_same_bounds() -> None:
    config = load_config("fc100")
    with pytest.raises(UserError, match=r"optimizer\.lr must be at least 0 and finite, found inf"):
        replace(config, optimizer=replace(config.optimizer, lr=math.inf))
    with pytest.raises(UserError, match=r"data\.mean must be finite"):
        replace(config, data=replace(config.data, mean=(math.nan, 0.0, 0.0)))


@pytest.mark.parametrize("text", ['method={name="simclr"}', "training = {seed=7}"])
def test_a_section_is_not_set_as_a_whole(text: str) -> None:
    """By it a setting passed by what refuses it under its own name."""
    with pytest.raises(UserError, match="--set takes one setting at a time"):
        parse_override(text)
    assert parse_override("backbone.options={widths=[4, 8]}")[1] == {"widths": [4, 8]}
