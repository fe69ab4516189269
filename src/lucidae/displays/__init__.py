"""Plots of fitted estimators by ``…Display.from_estimator``, as in scikit-learn.

Matplotlib is imported when a display is drawn, not with this module.
"""

from lucidae.displays._components import ComponentsDisplay, SpectrumDisplay
from lucidae.displays._counts import ComponentCountDisplay
from lucidae.displays._fit import HistoryDisplay, RecoveryDisplay
from lucidae.displays._path import DropoutPathDisplay, NoisePathDisplay, RankPathDisplay
from lucidae.displays._sources import SourceDisplay

__all__ = [
    "ComponentCountDisplay",
    "ComponentsDisplay",
    "DropoutPathDisplay",
    "HistoryDisplay",
    "NoisePathDisplay",
    "RankPathDisplay",
    "RecoveryDisplay",
    "SourceDisplay",
    "SpectrumDisplay",
]
