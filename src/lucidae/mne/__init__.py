"""Source localisation of evoked responses, in the terms of MNE-Python (extra ``mne``)."""

from __future__ import annotations

try:
    import mne as mne
except ModuleNotFoundError as error:
    if error.name != "mne":
        raise
    raise ImportError(
        "lucidae.mne needs MNE-Python, which is not installed: pip install 'lucidae[mne]'."
    ) from error

from lucidae.mne.inverse import solver, sparse_vae
from lucidae.mne.result import SourceResult

__all__ = ["SourceResult", "solver", "sparse_vae"]
