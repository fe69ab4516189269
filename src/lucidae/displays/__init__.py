"""Plots of fitted estimators by ``…Display.from_estimator``, as in scikit-learn.

Matplotlib is imported when a display is drawn, not with this module.
"""

from lucidae.displays._fits import (
    ComponentCountDisplay,
    ComponentsDisplay,
    HistoryDisplay,
    RecoveryDisplay,
    SpectrumDisplay,
)
from lucidae.displays._paths import (
    DropoutPathDisplay,
    EnergySliceDisplay,
    NoisePathDisplay,
    RankPathDisplay,
)
from lucidae.displays._sources import SourceDisplay

__all__ = [
    "ComponentCountDisplay",
    "ComponentsDisplay",
    "DropoutPathDisplay",
    "EnergySliceDisplay",
    "HistoryDisplay",
    "NoisePathDisplay",
    "RankPathDisplay",
    "RecoveryDisplay",
    "SourceDisplay",
    "SpectrumDisplay",
]
