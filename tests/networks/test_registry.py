"""Backbones by name: tolerant of spelling, strict about options, open to users' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eigenshot.errors import UserError
from eigenshot.networks import Backbone, create_backbone, list_backbones, register_backbone
from eigenshot.networks import registry as registry_module

USER_MODULE = """
from __future__ import annotations
from typing import TYPE_CHECKING
import torch
from torch import nn
if TYPE_CHECKING:
    from nowhere import Unknown

class Network(nn.Module):
    def __init__(self, in_channels: int, width: int = 4, scales: tuple[float, ...] = (1.0,)):
        super().__init__()
        self.scales = scales
        self.stages = nn.ModuleList([nn.Conv2d(in_channels, width, 3), nn.Conv2d(width, 9, 3)])

def grey_network(in_channels=1):
    return nn.Conv2d(in_channels, 5, 3)

def fixed_network():
    return nn.Conv2d(2, 6, 3)

def large_network(*, image_size=64):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, 3))

def keyword_network(**options):
    return nn.Conv2d(options.get("in_channels", 3), options["width"], 3)

def oddly_annotated(depth: Unknown = None):
    return nn.Conv2d(3, 5, 3)

def no_module():
    return [1, 2]

def broken():
    raise RuntimeError("no weights here")

built = nn.Identity()
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_networks.py").write_text(USER_MODULE)
    (tmp_path / "their_broken_file.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_BACKBONES", dict(registry_module._BACKBONES))


def test_the_names() -> None:
    names = ["conv4", "resnet12", "resnet18", "resnet18_imagenet", "wrn28_10"]
    assert list_backbones() == names


@pytest.mark.parametrize("name", ["wrn28_10", "wrn-28-10", "WRN-28-10", "wrn_28_10", "wrn2810"])
def test_hyphens_underscores_and_case_do_not_matter(name: str) -> None:
    backbone = create_backbone(name, depth=10, width_factor=1)
    assert backbone.out_features == 64


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown backbone 'resnet-13'; did you mean 'resnet1"):
        create_backbone("resnet-13")
    with pytest.raises(UserError, match="known: conv4, resnet12, resnet18, resnet18_imagenet, wrn"):
        create_backbone("transformer")


def test_options_arrive_and_lists_become_tuples() -> None:
    backbone = create_backbone(
        "resnet12", in_channels=1, widths=[4, 5, 6, 7], drop_block=0, drop_block_size=3
    )
    assert (backbone.in_channels, backbone.out_features) == (1, 7)
    assert backbone(torch.rand(2, 1, 16, 16)).shape == (2, 7)
    assert isinstance(backbone.stages[0].drop.rate, float)


def test_an_unknown_option_is_answered_with_the_nearest_and_the_valid_ones() -> None:
    expected = (
        r"backbone 'resnet12' has no option 'width'; did you mean 'widths'\? "
        r"\(options: in_channels, widths, drop_block, drop_block_size\)"
    )
    with pytest.raises(UserError, match=expected):
        create_backbone("resnet12", width=64)
    with pytest.raises(UserError, match=r"no option 'qqq'; known: in_channels, widths$"):
        create_backbone("conv4", qqq=1)


@pytest.mark.parametrize(
    ("name", "option", "value", "expected"),
    [
        ("resnet12", "in_channels", "3", "expected a whole number, found '3'"),
        ("resnet12", "in_channels", True, "expected a whole number, found True"),
        ("resnet12", "in_channels", 3.0, "expected a whole number, found 3.0"),
        ("resnet12", "drop_block", "a lot", "expected a number, found 'a lot'"),
        ("resnet12", "drop_block", False, "expected a number, found False"),
        ("resnet12", "widths", 64, "expected a list of 4 whole numbers, found 64"),
        ("resnet12", "widths", "6464", "expected a list of 4 whole numbers, found '6464'"),
        ("resnet12", "widths", [64, 64], r"expected a list of 4 whole numbers, found \[64, 64\]"),
        ("conv4", "widths", [8, 8, 8, 8.5], "expected a list of 4 whole numbers"),
        ("conv4", "widths", [8, 0, 8, 8], r"widths of at least 1, found \(8, 0, 8, 8\)"),
        ("resnet18", "in_channels", 0, "in_channels of at least 1, found 0"),
        ("wrn28_10", "width_factor", -1, "width_factor of at least 1, found -1"),
        ("resnet12", "drop_block", 1.5, "DropBlock rate"),
    ],
)
def test_wrong_values_are_refused(name: str, option: str, value: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        create_backbone(name, **{option: value})
    assert option in str(caught.value) or "DropBlock" in str(caught.value)


@pytest.mark.usefixtures("own_registry")
def test_a_registered_function_is_known_by_its_name() -> None:
    @register_backbone
    def tiny_network(
        *, in_channels: int = 3, deep: bool = False, side: int | None = None
    ) -> Backbone:
        stages = [torch.nn.Conv2d(in_channels, 2, 1)] * (2 if deep else 1)
        return Backbone(stages, out_features=2, in_channels=in_channels, min_size=side or 1)

    assert "tiny_network" in list_backbones()
    assert create_backbone("tiny-network", side=4).min_size == 4
    assert create_backbone("tiny-network", side=None).min_size == 1
    assert len(create_backbone("tiny-network", in_channels=2, deep=True).stages) == 2
    with pytest.raises(
        UserError, match="'deep' of backbone 'tiny_network': expected true or false, found 1"
    ):
        create_backbone("tiny_network", deep=1)
    with pytest.raises(UserError, match=r"'side' .*expected a whole number, found 'x'"):
        create_backbone("tiny_network", side="x")
    assert register_backbone(tiny_network) is tiny_network


@pytest.mark.usefixtures("own_registry")
def test_a_name_cannot_be_taken_twice() -> None:
    def resnet_12() -> Backbone:
        raise NotImplementedError

    with pytest.raises(UserError, match="'resnet12' is registered already"):
        register_backbone(resnet_12)


@pytest.mark.usefixtures("user_module")
class TestUsersOwn:
    def test_a_class_with_stages_and_options(self) -> None:
        backbone = create_backbone("their_networks:Network", in_channels=2, width=3, scales=[1, 2])
        assert (backbone.in_channels, backbone.out_features, len(backbone.stages)) == (2, 9, 2)
        assert backbone(torch.rand(2, 2, 8, 8)).shape == (2, 9)

    def test_channels_are_three_unless_the_factory_or_the_caller_says_otherwise(self) -> None:
        assert create_backbone("their_networks:Network").in_channels == 3
        assert create_backbone("their_networks:grey_network").in_channels == 1
        assert create_backbone("their_networks:grey_network", in_channels=4).in_channels == 4

    def test_a_factory_need_not_take_channels(self) -> None:
        backbone = create_backbone("their_networks:fixed_network", in_channels=2)
        assert (backbone.in_channels, backbone.out_features) == (2, 6)
        with pytest.raises(UserError, match=r"shape \(2, 3, 32, 32\) failed"):
            create_backbone("their_networks:fixed_network")

    def test_the_image_size_of_the_trial(self) -> None:
        assert create_backbone("their_networks:large_network").out_features == 3
        assert create_backbone("their_networks:large_network", image_size=8).out_features == 3
        with pytest.raises(UserError, match=r"'image_size' .* positive int, found '8'"):
            create_backbone("their_networks:large_network", image_size="8")

    def test_keywords_pass_unchecked(self) -> None:
        backbone = create_backbone("their_networks:keyword_network", in_channels=2, width=3)
        assert (backbone.in_channels, backbone.out_features) == (2, 3)

    def test_annotations_for_type_checkers_only_do_no_harm(self) -> None:
        assert create_backbone("their_networks:oddly_annotated", depth=3).out_features == 5

    @pytest.mark.parametrize(
        ("path", "options", "expected"),
        [
            ("no_such_module:Network", {}, "cannot import 'no_such_module'"),
            ("their_broken_file:Network", {}, "cannot import 'their_broken_file'.*nothing_of_this"),
            ("their_networks:Netwrok", {}, "has no 'Netwrok'; did you mean 'Network'"),
            ("their_networks:", {}, "expected backbone as 'package.module:Name'"),
            (":Network", {}, "expected backbone as 'package.module:Name'"),
            ("their_networks:no_module", {}, "torch.nn.Module, found list"),
            ("their_networks:built", {}, "class or function .* found an object of type Identity"),
            ("their_networks:broken", {}, r"broken\(\) failed: RuntimeError: no weights here"),
            ("their_networks:Network", {"widht": 3}, "no option 'widht'; did you mean 'width'"),
            ("their_networks:Network", {"width": "3"}, "expected a whole number, found '3'"),
            ("torch.nn:Linear", {}, "needs the option 'in_features'"),
        ],
    )
    def test_errors_say_what_is_wrong(
        self, path: str, options: dict[str, Any], expected: str
    ) -> None:
        with pytest.raises(UserError, match=expected):
            create_backbone(path, **options)
