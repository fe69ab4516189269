"""Source localisation of evoked responses, in the terms of MNE-Python (extra ``mne``)."""

from __future__ import annotations

from lucidae.validation import install_command

try:
    import mne as mne
except ModuleNotFoundError as error:
    if error.name != "mne":
        raise
    raise ImportError(
        f"lucidae.mne needs MNE-Python, which is not installed: {install_command('mne')}."
    ) from error

from lucidae.mne.inverse import solver, sparse_vae
from lucidae.mne.result import SourceResult

__all__ = ["SourceResult", "solver", "sparse_vae"]
