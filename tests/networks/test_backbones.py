"""Backbones: published sizes, stages that compose, and users' own modules."""

from __future__ import annotations

import copy
import pickle
import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from eigenshot.errors import UserError
from eigenshot.networks import Backbone, DropBlock, as_backbone, create_backbone, list_backbones

SMALL = {
    "conv4": {"widths": (4, 6, 8, 10)},
    "resnet12": {"widths": (4, 6, 8, 10)},
    "resnet18": {"widths": (4, 6, 8, 10)},
    "resnet18_imagenet": {"widths": (4, 6, 8, 10)},
    "wrn28_10": {"depth": 10, "width_factor": 1},
}


def small_backbone(name: str, **options: object) -> Backbone:
    torch.manual_seed(0)
    return create_backbone(name, **SMALL[name], **options)


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_every_registered_backbone_is_tested_here() -> None:
    assert list_backbones() == sorted(SMALL)


@pytest.mark.parametrize(
    ("name", "classes", "published"),
    [
        ("resnet12", 0, 12_424_320),
        ("resnet18", 10, 11_173_962),
        ("resnet18_imagenet", 1000, 11_689_512),
        ("wrn28_10", 10, 36_479_194),
        # Published Conv4 counts are 256 higher where they keep the four biases of 64 that batch
        # normalisation takes off again.
        ("conv4", 0, 113_088 - 256),
    ],
)
def test_parameter_counts_with_a_linear_classifier_are_the_published_ones(
    name: str, classes: int, published: int
) -> None:
    with torch.device("meta"):
        backbone = create_backbone(name)
    classifier = (backbone.out_features + 1) * classes
    assert parameter_count(backbone) + classifier == published


def test_resnet12_count_follows_from_its_layers() -> None:
    widths = (3, 64, 160, 320, 640)
    expected = 0
    for inputs, outputs in pairwise(widths):
        convolutions = 9 * inputs * outputs + 2 * 9 * outputs**2
        shortcut = inputs * outputs
        normalisations = 4 * 2 * outputs
        expected += convolutions + shortcut + normalisations
    with torch.device("meta"):
        assert parameter_count(create_backbone("resnet12")) == expected == 12_424_320


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("conv4", [(64, 16), (64, 8), (64, 4), (64, 2)]),
        ("resnet12", [(64, 16), (160, 8), (320, 4), (640, 2)]),
        ("resnet18", [(64, 32), (64, 32), (128, 16), (256, 8), (512, 4)]),
        ("resnet18_imagenet", [(64, 8), (64, 8), (128, 4), (256, 2), (512, 1)]),
        ("wrn28_10", [(16, 32), (160, 32), (320, 16), (640, 8)]),
    ],
)
def test_every_layer_has_the_documented_shape_at_32_pixels(
    name: str, shapes: list[tuple[int, int]]
) -> None:
    with torch.device("meta"):
        backbone = create_backbone(name)
        images = torch.empty(2, 3, 32, 32)
        found = [
            tuple(backbone.forward_stages(images, 0, layer).shape)
            for layer in range(1, len(backbone.stages) + 1)
        ]
        assert found == [(2, channels, side, side) for channels, side in shapes]
        assert backbone(images).shape == (2, backbone.out_features)
    assert backbone.out_features == shapes[-1][0]


@pytest.mark.parametrize("name", SMALL)
def test_running_the_stages_in_two_parts_is_running_them_all(name: str) -> None:
    backbone = small_backbone(name).eval()
    images = torch.randn(2, 3, 20, 24)
    whole = backbone(images)
    assert whole.shape == (2, backbone.out_features)
    for layer in range(len(backbone.stages) + 1):
        hidden = backbone.forward_stages(images, 0, layer)
        assert torch.equal(backbone.pool(backbone.forward_stages(hidden, layer)), whole)
    assert backbone.forward_stages(images, 0, 0) is images


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_of_every_stage_gets_a_gradient(name: str) -> None:
    backbone = small_backbone(name)
    features = backbone(torch.randn(4, 3, 32, 32))
    (features * torch.randn_like(features)).sum().backward()
    for key, parameter in backbone.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", SMALL)
def test_stages_do_not_write_into_their_input(name: str) -> None:
    backbone = small_backbone(name)
    x = torch.randn(4, 3, 32, 32)
    for layer in range(len(backbone.stages)):
        before = x.clone()
        following = backbone.forward_stages(x, layer, layer + 1)
        assert torch.equal(x, before)
        x = following


@pytest.mark.parametrize("name", SMALL)
def test_channels_last_gives_the_same_features(name: str) -> None:
    backbone = small_backbone(name).double()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    expected = backbone(images)
    backbone.to(memory_format=torch.channels_last)
    found = backbone(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_decides_weights_and_features(name: str) -> None:
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(small_backbone(name)(images), small_backbone(name)(images))


@pytest.mark.parametrize("name", SMALL)
def test_min_size_is_the_smallest_side_that_works(name: str) -> None:
    backbone = small_backbone(name, in_channels=1).eval()
    side = backbone.min_size
    assert backbone(torch.rand(2, 1, side, side)).isfinite().all()

    too_small = torch.rand(2, 1, side + 8, side - 1)
    with pytest.raises(UserError, match=f"sides of at least {side}, found \\(2, 1, {side + 8}"):
        backbone(too_small)
    # The stages themselves cannot do it either: the check refuses nothing that would work.
    with pytest.raises(RuntimeError):
        nn.Sequential(*backbone.stages)(too_small)


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 1, 32, 32), (2, 32, 32, 3)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"expected images \(batch, 3, height, width\)"):
        small_backbone("conv4")(torch.rand(shape))


@pytest.mark.parametrize(("start", "stop"), [(-1, None), (0, 5), (5, None), (3, 2)])
def test_layers_that_do_not_exist_are_refused(start: int, stop: int | None) -> None:
    with pytest.raises(UserError, match="0 <= start <= stop <= 4"):
        small_backbone("conv4").forward_stages(torch.rand(2, 3, 32, 32), start, stop)


def test_pool_averages_maps_and_lets_vectors_pass() -> None:
    backbone = small_backbone("conv4")
    maps, vectors = torch.rand(2, 5, 3, 4), torch.rand(2, 5)
    torch.testing.assert_close(backbone.pool(maps), maps.flatten(2).mean(-1))
    assert backbone.pool(vectors) is vectors
    for shape in [(2, 5, 7), (2, 5, 0, 0)]:
        with pytest.raises(UserError, match=f"found {re.escape(str(shape))}"):
            backbone.pool(torch.rand(shape))


def test_a_backbone_without_stages_is_refused() -> None:
    with pytest.raises(UserError, match="at least one stage"):
        Backbone([], out_features=1)


def test_wide_resnet_refuses_a_depth_it_cannot_have() -> None:
    with pytest.raises(UserError, match="6n \\+ 4"):
        create_backbone("wrn28_10", depth=27)


# The arithmetic of the blocks, written once more with functions


def normalised(x: Tensor) -> Tensor:
    return nn.functional.batch_norm(x, None, None, training=True)


def convolutions_of(module: nn.Module) -> list[nn.Conv2d]:
    return [part for part in module.modules() if isinstance(part, nn.Conv2d)]


def test_resnet12_block_adds_before_it_activates_and_pools() -> None:
    block = small_backbone("resnet12").stages[1]
    first, second, third, shortcut = convolutions_of(block)
    x = torch.randn(4, 4, 9, 8)

    def activated(y: Tensor) -> Tensor:
        return torch.where(y > 0, y, 0.1 * y)

    y = normalised(third(activated(normalised(second(activated(normalised(first(x))))))))
    expected = nn.functional.max_pool2d(activated(y + normalised(shortcut(x))), 2)
    torch.testing.assert_close(block(x), expected)


def test_resnet18_block_normalises_its_shortcut_and_activates_the_sum() -> None:
    narrowing, plain = small_backbone("resnet18").stages[2]
    first, second, shortcut = convolutions_of(narrowing)
    x = torch.randn(4, 4, 8, 8)
    y = normalised(second(normalised(first(x)).relu()))
    torch.testing.assert_close(narrowing(x), (y + normalised(shortcut(x))).relu())

    first, second = convolutions_of(plain)
    x = torch.randn(4, 6, 8, 8)
    y = normalised(second(normalised(first(x)).relu()))
    torch.testing.assert_close(plain(x), (y + x).relu())


def test_wide_resnet_block_activates_first_and_leaves_the_identity_bare() -> None:
    groups = small_backbone("wrn28_10").stages
    narrowing = groups[2][0]
    first, second, shortcut = convolutions_of(narrowing)
    x = torch.randn(4, 16, 8, 8)
    activated = normalised(x).relu()
    expected = second(normalised(first(activated)).relu()) + shortcut(activated)
    torch.testing.assert_close(narrowing(x), expected)

    plain = groups[1][0]
    first, second = convolutions_of(plain)
    expected = second(normalised(first(activated)).relu()) + x
    torch.testing.assert_close(plain(x), expected)


def test_wide_resnet_ends_activated() -> None:
    *blocks, norm, activation = small_backbone("wrn28_10").stages[-1]
    assert len(blocks) == 1
    x = torch.randn(4, 64, 3, 3)
    torch.testing.assert_close(activation(norm(x)), normalised(x).relu())


# DropBlock


@pytest.mark.parametrize(("block_size", "side"), [(1, 8), (3, 8), (5, 2), (4, 5)])
def test_dropblock_drops_the_asked_share_everywhere_and_keeps_the_mean(
    block_size: int, side: int
) -> None:
    torch.manual_seed(0)
    dropped = DropBlock(0.3, block_size=block_size)(torch.ones(40, 1000, side, side))
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    # 40,000 independent maps: the standard error of a position's share is 0.0023.
    share_kept = (dropped > 0).float().mean(dim=(0, 1))
    assert (share_kept - 0.7).abs().max() < 0.012


def test_dropblock_drops_whole_blocks() -> None:
    torch.manual_seed(0)
    kept = DropBlock(0.02, block_size=3)(torch.ones(64, 8, 16, 16)) > 0
    # Inside the map every dropped position belongs to a 3×3 square of dropped positions.
    squares = nn.functional.max_pool2d(kept.float(), 3, stride=1) == 0
    covered = nn.functional.max_pool2d(nn.functional.pad(squares.float(), [2] * 4), 3, stride=1) > 0
    inner = (..., slice(2, -2), slice(2, -2))
    assert squares.any()
    assert torch.equal(covered[inner], ~kept[inner])


def test_dropblock_is_the_identity_in_eval_mode_and_at_rate_0() -> None:
    x = torch.rand(2, 3, 8, 8)
    state = torch.get_rng_state()
    assert DropBlock(0.5).eval()(x) is x
    assert DropBlock(0.0)(x) is x
    assert torch.equal(torch.get_rng_state(), state)


def test_dropblock_in_resnet12_acts_on_the_last_two_blocks_while_training() -> None:
    images = torch.rand(4, 3, 32, 32)
    plain, dropping = small_backbone("resnet12"), small_backbone("resnet12", drop_block=0.3)
    for layer, differs in enumerate([False, False, True, True]):
        x = plain.forward_stages(images, 0, layer)
        outputs = [backbone.forward_stages(x, layer, layer + 1) for backbone in (plain, dropping)]
        assert torch.equal(*outputs) is not differs
    dropping.load_state_dict(plain.state_dict())
    assert torch.equal(plain.eval()(images), dropping.eval()(images))


@pytest.mark.parametrize(("rate", "block_size"), [(1.0, 5), (-0.1, 5), (0.1, 0)])
def test_dropblock_refuses_impossible_values(rate: float, block_size: int) -> None:
    with pytest.raises(UserError, match="DropBlock"):
        DropBlock(rate, block_size=block_size)


# Users' own modules


class Counting(nn.Module):
    """Changes a buffer on every forward, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


def plain_module() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), Counting())


class Staged(nn.Module):
    def __init__(self, container: type) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3)
        self.second = nn.Sequential(nn.ReLU(), nn.Conv2d(5, 6, 3))
        stages = [self.first, self.second]
        self.stages = nn.Sequential(*stages) if container is nn.Sequential else container(stages)


def test_a_backbone_stays_itself() -> None:
    backbone = small_backbone("conv4")
    assert as_backbone(backbone) is backbone


def test_a_plain_module_is_one_stage_and_the_trial_leaves_no_trace() -> None:
    module = plain_module()
    module[1].eval()
    before = copy.deepcopy(module.state_dict())
    backbone = as_backbone(module)
    assert list(backbone.stages) == [module]
    assert backbone.out_features == 7
    assert [part.training for part in module] == [True, False, True]
    assert module.training
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), key
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(backbone(images), module(images).mean((2, 3)))


@pytest.mark.parametrize("container", [nn.ModuleList, nn.Sequential, list, tuple])
def test_a_module_with_stages_runs_as_those(container: type) -> None:
    module = Staged(container)
    backbone = as_backbone(module)
    assert list(backbone.stages) == [module.first, module.second]
    assert backbone.out_features == 6
    images = torch.rand(2, 3, 8, 8)
    expected = module.second(module.first(images)).mean((2, 3))
    assert torch.equal(backbone(images), expected)


def test_attributes_of_the_module_are_taken_without_a_trial() -> None:
    module = nn.Sequential(nn.Conv2d(1, 9, 5))
    module.out_features, module.min_size = 9, 5
    backbone = as_backbone(module, in_channels=3)  # a trial with 3 channels would fail
    assert (backbone.out_features, backbone.min_size) == (9, 5)


def test_a_module_that_gives_vectors_needs_no_pooling() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(2 * 8 * 8, 11))
    backbone = as_backbone(module, in_channels=2, image_size=8)
    assert backbone.out_features == 11
    assert backbone(torch.rand(3, 2, 8, 8)).shape == (3, 11)


def test_a_failing_trial_says_what_was_tried_and_why_it_failed() -> None:
    with pytest.raises(UserError, match=r"Conv2d .* shape \(2, 3, 32, 32\) failed: .* 1 channels"):
        as_backbone(nn.Conv2d(1, 4, 3))
    assert as_backbone(nn.Conv2d(1, 4, 3), in_channels=1).out_features == 4


def test_a_module_that_gives_sequences_is_refused_with_their_shape() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2))
    with pytest.raises(UserError, match=r"found \(2, 4, 900\)"):
        as_backbone(module)
    assert module.training


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(UserError, match="found int"):
        as_backbone(3)  # type: ignore[arg-type]
    module = nn.Identity()
    module.stages = [nn.Identity(), "conv"]
    with pytest.raises(UserError, match="found str at 1"):
        as_backbone(module)


def test_parameters_outside_the_stages_are_named_in_a_warning() -> None:
    module = Staged(nn.ModuleList)
    module.head = nn.Linear(6, 2)
    with pytest.warns(UserWarning, match=r"left out: head\.weight, head\.bias"):
        as_backbone(module)


@pytest.mark.parametrize(
    "build", [plain_module, lambda: Staged(list), lambda: as_backbone(Staged(list))]
)
def test_weights_saved_from_the_module_or_from_the_backbone_load(build: object) -> None:
    source = build()
    target = as_backbone(build())
    images = torch.rand(2, 3, 8, 8)
    expected = as_backbone(source).eval()(images)
    assert not torch.equal(target.eval()(images), expected)
    target.load_state_dict(source.state_dict())
    assert torch.equal(target(images), expected)

    nested = nn.ModuleDict({"network": as_backbone(build())})
    nested.load_state_dict({f"network.{key}": v for key, v in source.state_dict().items()})
    assert torch.equal(nested["network"].eval()(images), expected)


def test_an_adopted_backbone_survives_copying_and_pickling() -> None:
    backbone = as_backbone(nn.Conv2d(3, 4, 3))
    images = torch.rand(2, 3, 8, 8)
    for twin in (copy.deepcopy(backbone), pickle.loads(pickle.dumps(backbone))):
        assert torch.equal(twin(images), backbone(images))
