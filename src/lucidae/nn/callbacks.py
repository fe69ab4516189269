"""Monitors of collapse, certificates and prefix losses, for Lightning and for plain loops.

Give a monitor to Lightning's ``Trainer`` as a callback (extra ``lightning``): it logs its scalars
after each epoch. In a loop of your own, which does not need Lightning, call ``measure(module)``
once per epoch: it returns the scalars and appends them to ``history``. The scalars come from plain
functions of `lucidae.nn`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from lucidae.nn.bottleneck import certify_dropout, certify_linear
from lucidae.nn.collapse import CollapseReport, collapse_report
from lucidae.nn.layers import Tensor
from lucidae.nn.training import (
    Scalars,
    certificate_scalars,
    collapse_scalars,
    mean_scalars,
    prefix_scalars,
    scalars_figure,
)
from lucidae.validation import check_choice, check_integer

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "lightning":
        raise
    # Without Lightning there is no Trainer either, and plain loops need no base class.
    Callback = object

__all__ = ["CertificateMonitor", "CollapseMonitor", "PrefixMonitor"]


class ScalarMonitor(ABC, Callback):
    """Base class of the monitors, which measure, log and store scalars after each epoch.

    Scalars are measured after the validation of an epoch, or after the training epoch if there is
    no validation, in every process, and logged by the first one. At the end of ``fit`` a figure of
    the history is given to each logger that takes figures, such as TensorBoard. A subclass defines
    `_scalars`, the function that measures the scalars of a module.
    """

    def __init__(self, name: str, every_n_epochs: int = 1) -> None:
        super().__init__()
        self.name = str(name)
        self.every_n_epochs = check_integer(every_n_epochs, "every_n_epochs", low=1)
        self.history: list[Scalars] = []

    @property
    def state_key(self) -> str:
        """Key of this callback in checkpoints; monitors of different names have different keys."""
        return f"{type(self).__qualname__}({self.name!r})"

    def state_dict(self) -> dict[str, Any]:
        """Return the measured scalars (`history`), which checkpoints store."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the measured scalars (`history`) from a checkpoint."""
        self.history = list(state_dict["history"])

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure the scalars and log them, after the validation of an epoch."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._record(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure the scalars and log them after a training epoch, if there is no validation."""
        if not _validates(trainer):
            self._record(trainer, pl_module)

    def on_fit_end(self, trainer: Any, _pl_module: Any) -> None:
        """Draw the measured scalars, and give the figure to each logger that takes figures."""
        takers = [logger for logger in trainer.loggers if hasattr(logger.experiment, "add_figure")]
        if not self.history or not trainer.is_global_zero or not takers:
            return
        for logger in takers:
            logger.experiment.add_figure(self.name, self.figure(), trainer.global_step)

    def measure(self, module: Any, trainer: Any = None) -> Scalars:
        """Return the scalars of a module, and add them to the history.

        Parameters
        ----------
        module : nn.Module
            The network that is trained.
        trainer : Trainer, optional
            None in a loop of your own, in which this method is called once per epoch.

        Returns
        -------
        dict
            The scalars by their names. If nothing could be measured, the dictionary is empty and
            not added to the history.
        """
        if not isinstance(module, torch.nn.Module):
            raise ValueError(
                f"module is of type {type(module).__name__}, expected the network that is trained, "
                "an nn.Module."
            )
        scalars = self._scalars(module, trainer)
        if scalars:
            following = self.history[-1]["epoch"] + 1 if self.history else 0
            epoch = following if trainer is None else trainer.current_epoch
            self.history.append({"epoch": float(epoch)} | scalars)
        return scalars

    @abstractmethod
    def _scalars(self, module: Any, trainer: Any) -> Scalars:
        """Return the scalars of a module by name; a subclass defines which they are."""

    def figure(self) -> Any:
        """Return a figure of the measured scalars; see `lucidae.nn.scalars_figure`."""
        return scalars_figure(self.history, self.name)

    def _record(self, trainer: Any, module: Any) -> None:
        """Measure the scalars of a module and log them, every `every_n_epochs` epochs."""
        if (int(trainer.current_epoch) + 1) % self.every_n_epochs:
            return
        scalars = self.measure(module, trainer)
        if scalars:
            module.log_dict(
                {f"{self.name}/{name}": value for name, value in scalars.items()},
                rank_zero_only=True,
            )


class CollapseMonitor(ScalarMonitor):
    """Log how many latents of a variational autoencoder are used during its training.

    The scalars are those of `lucidae.nn.collapse_scalars`. The attribute `report` contains the last
    full report.

    Parameters
    ----------
    data : tensor or loader, optional
        Inputs of the model; the validation data by default, or the training data if there are none.
    model : str, default=""
        Name of the submodule with the method ``encode``; the whole module by default.
    name : str, default="collapse"
        Precedes the names of all scalars in the log, with a slash.
    every_n_epochs : int, default=1
        Number of epochs from one measurement to the next.
    **settings
        Further arguments of `lucidae.nn.collapse_report`, such as `noise_variance`.

    Attributes
    ----------
    report : CollapseReport or None
        The last report.
    history : list of dict
        All measured scalars, one dictionary per measurement.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import DictionaryVAE
    >>> from lucidae.nn.callbacks import CollapseMonitor
    >>> monitor = CollapseMonitor(torch.randn(50, 2))  # Trainer(callbacks=[monitor])
    >>> monitor.measure(DictionaryVAE(torch.eye(2), noise_variance=1.0))["active"]
    0.0
    >>> len(monitor.history), monitor.history[0]["epoch"]
    (1, 0.0)
    """

    def __init__(
        self,
        data: Any = None,
        *,
        model: str = "",
        name: str = "collapse",
        every_n_epochs: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(name, every_n_epochs)
        self.data, self.model, self.settings = data, str(model), settings
        self.report: CollapseReport | None = None

    def _scalars(self, module: Any, trainer: Any) -> Scalars:
        """Return numbers of the collapse report of a module, such as that of active latents."""
        data = _loader(trainer) if self.data is None else self.data
        self.report = collapse_report(module.get_submodule(self.model), data, **self.settings)
        return collapse_scalars(self.report)


class CertificateMonitor(ScalarMonitor):
    """Log how far two linear layers of a network are from their known optimum.

    The scalars are those of `lucidae.nn.certificate_scalars`. The attribute `certificate`
    contains the last certificate.

    Parameters
    ----------
    first, second : str
        Names of two linear layers of the module: encoder and decoder of the bottleneck.
    data : tensor of shape (n, in_features)
        Inputs of the first layer.
    target : tensor of shape (n, out_features), optional
        Desired outputs, for ``family="dropout"``; the inputs by default.
    family : {"dropout", "linear"}, default="dropout"
        ``"dropout"`` compares with the minimum of the expected dropout loss
        (`lucidae.nn.certify_dropout`), ``"linear"`` with the principal components
        (`lucidae.nn.certify_linear`).
    name : str, default="certificate"
        Precedes the names of all scalars in the log, with a slash.
    every_n_epochs : int, default=1
        Number of epochs from one measurement to the next.
    **settings
        Further arguments of the function that certifies, such as `dropout` or `method`.

    Attributes
    ----------
    certificate : Certificate or None
        The last certificate.
    history : list of dict
        All measured scalars, one dictionary per measurement.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn.callbacks import CertificateMonitor
    >>> _ = torch.manual_seed(0)
    >>> network = torch.nn.Sequential(
    ...     torch.nn.Linear(3, 2), torch.nn.Dropout(), torch.nn.Linear(2, 3))
    >>> monitor = CertificateMonitor("0", "2", torch.randn(50, 3), dropout=0.5)
    >>> monitor.measure(network)["claims_failed"] > 0
    True
    """

    def __init__(
        self,
        first: str,
        second: str,
        data: Tensor,
        target: Tensor | None = None,
        *,
        family: str = "dropout",
        name: str = "certificate",
        every_n_epochs: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(name, every_n_epochs)
        self.layers = (str(first), str(second))
        self.data, self.target, self.settings = data, target, settings
        self.family = check_choice(family, "family", ("dropout", "linear"))
        if target is not None and family == "linear":
            raise ValueError(
                "a target was given with family='linear', expected none: a linear autoencoder "
                "reproduces its inputs."
            )
        self.certificate: Any = None

    def _scalars(self, module: Any, _trainer: Any) -> Scalars:
        """Return the measured values of the certificate of the two monitored layers of a module."""
        first, second = (module.get_submodule(name) for name in self.layers)
        if self.family == "linear":
            self.certificate = certify_linear(first, second, self.data, **self.settings)
        else:
            self.certificate = certify_dropout(
                first, second, self.data, self.target, **self.settings
            )
        return certificate_scalars(self.certificate)


class PrefixMonitor(ScalarMonitor):
    """Log the loss of each prefix of embeddings, from all `lucidae.nn.PrefixLoss` in a module.

    A prefix of length b consists of the first b dimensions of an embedding. Means over an epoch are
    logged, as ``prefixes/train/prefix_8`` and ``prefixes/val/prefix_8`` for b = 8. In a loop
    without a trainer, call ``read(module, "train")`` after each step and ``measure(module)`` after
    each epoch.

    Parameters
    ----------
    every_n_steps : int, default=10
        Number of training steps from one reading of the losses to the next. Reading copies them
        from the device, which takes time.
    name : str, default="prefixes"
        Precedes the names of all scalars in the log, with a slash.
    every_n_epochs : int, default=1
        Number of epochs from one measurement to the next.

    Attributes
    ----------
    history : list of dict
        All measured scalars, one dictionary per measurement.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import PrefixLoss
    >>> from lucidae.nn.callbacks import PrefixMonitor
    >>> loss, monitor = PrefixLoss(torch.sum, dims=[1, 2]), PrefixMonitor()
    >>> _ = loss(torch.ones(3, 2))
    >>> monitor.read(loss, "train")
    >>> monitor.measure(loss)
    {'train/prefix_1': 3.0, 'train/prefix_2': 6.0}
    """

    def __init__(
        self, *, every_n_steps: int = 10, name: str = "prefixes", every_n_epochs: int = 1
    ) -> None:
        super().__init__(name, every_n_epochs)
        self.every_n_steps = check_integer(every_n_steps, "every_n_steps", low=1)
        self._rows: list[Mapping[str, float]] = []

    def on_train_epoch_start(self, _trainer: Any, _pl_module: Any) -> None:
        """Discard the losses of all prefixes that were read in the previous epoch."""
        self._rows = []

    def on_train_batch_end(
        self, _trainer: Any, pl_module: Any, _outputs: Any, _batch: Any, batch_idx: int
    ) -> None:
        """Read the losses of all prefixes after a training step, every `every_n_steps` steps."""
        if batch_idx % self.every_n_steps == 0:
            self.read(pl_module, "train")

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_rest: Any) -> None:
        """Read the losses of all prefixes after a validation step."""
        if not trainer.sanity_checking:
            self.read(pl_module, "val")

    def read(self, module: Any, stage: str) -> None:
        """Store the losses of all prefixes from the last call of each `PrefixLoss` in a module.

        A prefix consists of the first dimensions of an embedding. `stage`, such as ``"train"``,
        precedes the names of the losses.
        """
        found = prefix_scalars(module)
        self._rows.append({f"{stage}/{name}": value for name, value in found.items()})

    def _scalars(self, _module: Any, trainer: Any) -> Scalars:
        """Return the mean loss of each prefix of the embeddings since the epoch began."""
        found = mean_scalars(self._rows)
        if trainer is None:
            self._rows = []
        return found


def _validates(trainer: Any) -> bool:
    """Return whether a trainer evaluates validation data during ``fit``."""
    counts = trainer.num_val_batches
    return sum(counts if isinstance(counts, list) else [counts]) > 0


def _loader(trainer: Any) -> Any:
    """Return the validation data of a trainer, or its training data if there are none."""
    if trainer is None:
        raise ValueError(
            "data is None and measure was called outside of a training with Lightning, expected "
            "the inputs of the model: give data to CollapseMonitor."
        )
    loader = trainer.val_dataloaders if _validates(trainer) else trainer.train_dataloader
    return loader[0] if isinstance(loader, list | tuple) else loader
