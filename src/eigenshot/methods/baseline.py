"""Baseline: a linear classifier on the features, trained with labels.

Chen et al., "A closer look at few-shot classification", 2019, section 3.1.
"""

from __future__ import annotations

from typing import Unpack

from torch import nn

from eigenshot.methods.heads import embedding_length
from eigenshot.methods.mixing import MixingOptions
from eigenshot.methods.supervised import SupervisedMethod, require_classes
from eigenshot.networks import Backbone


class Baseline(SupervisedMethod):
    """A linear classifier and its cross-entropy; what is mixed, `SupervisedMethod` says.

    Parameters
    ----------
    backbone, projector : as in `SupervisedMethod`.
    classes : the number of labels, at least 2.
    mixing : options of `MixingMethod`.
    """

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        classes: int,
        **mixing: Unpack[MixingOptions],
    ) -> None:
        classifier = nn.Linear(embedding_length(projector), require_classes(classes))
        super().__init__(backbone, projector, classifier, **mixing)
