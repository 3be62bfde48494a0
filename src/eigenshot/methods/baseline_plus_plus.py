"""Baseline++: classify by the cosine of features and class vectors, trained with labels.

Chen et al., "A closer look at few-shot classification", 2019, section 3.2.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from eigenshot.errors import UserError
from eigenshot.methods.heads import embedding_length, unit
from eigenshot.methods.mixing import MixingOptions
from eigenshot.methods.supervised import SupervisedMethod, require_classes
from eigenshot.networks import Backbone

# The authors' code: a larger factor where there are more than 200 classes.
_FEW_CLASSES = 200
_SCALE_OF_FEW, _SCALE_OF_MANY = 2.0, 10.0


class CosineClassifier(nn.Module):
    """Logits ``scale · g_c · cos(x, w_c)``, with a factor g_c of each class that is learned.

    Parameters
    ----------
    in_features : the length K of a feature.
    classes : the number of class vectors.
    scale : what all cosines are multiplied with.
    learned_norm : whether there are factors g_c, at the start the length of the class vector;
        without them all are 1.
    """

    def __init__(
        self, in_features: int, classes: int, *, scale: float, learned_norm: bool = True
    ) -> None:
        super().__init__()
        self.scale = scale
        weight = nn.Linear(in_features, classes, bias=False).weight.detach()
        self.weight = nn.Parameter(weight.clone())
        self.norm = nn.Parameter(weight.norm(dim=1)) if learned_norm else None

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, K)`` to ``(batch, classes)``, in float32 at least."""
        with torch.autocast(device_type=x.device.type, enabled=False):
            cosine = unit(x) @ normalize(self.weight, dim=1).T
            return self.scale * (cosine if self.norm is None else cosine * self.norm)


class BaselinePlusPlus(SupervisedMethod):
    """A cosine classifier and its cross-entropy; what is mixed, `SupervisedMethod` says.

    Parameters
    ----------
    backbone, projector : as in `SupervisedMethod`.
    classes : the number of labels, at least 2.
    scale : of the cosines; 0 for that of the authors' code, 2 up to 200 classes and 10 above.
    learned_norm : whether each class also learns a factor of its own, as in the authors' code; in
        the paper's equation there is none.
    mixing : options of `MixingMethod`.
    """

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        classes: int,
        scale: float = 0.0,
        learned_norm: bool = True,
        **mixing: Unpack[MixingOptions],
    ) -> None:
        if not scale >= 0:
            raise UserError(f"scale must be positive, or 0 for the default, found {scale}")
        few = require_classes(classes) <= _FEW_CLASSES
        classifier = CosineClassifier(
            embedding_length(projector),
            classes,
            scale=scale or (_SCALE_OF_FEW if few else _SCALE_OF_MANY),
            learned_norm=learned_norm,
        )
        super().__init__(backbone, projector, classifier, **mixing)
