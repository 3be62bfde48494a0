"""Backbones as ordered stages, and the projector."""

# Imported for what they register.
from eigenshot.networks import conv4, resnet12, resnet18, wide_resnet  # noqa: F401
from eigenshot.networks.backbone import Backbone, as_backbone
from eigenshot.networks.dropblock import DropBlock
from eigenshot.networks.projector import Projector, Standardize
from eigenshot.networks.registry import create_backbone, list_backbones, register_backbone

__all__ = [
    "Backbone",
    "DropBlock",
    "Projector",
    "Standardize",
    "as_backbone",
    "create_backbone",
    "list_backbones",
    "register_backbone",
]
