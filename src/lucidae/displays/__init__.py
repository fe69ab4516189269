"""Plots of your own fits, the way scikit-learn makes them: ``…Display.from_estimator``.

Matplotlib is needed to draw, not to import this module.
"""

from lucidae.displays._components import ComponentsDisplay
from lucidae.displays._history import HistoryDisplay
from lucidae.displays._recovery import RecoveryDisplay
from lucidae.displays._spectrum import SpectrumDisplay

__all__ = ["ComponentsDisplay", "HistoryDisplay", "RecoveryDisplay", "SpectrumDisplay"]
