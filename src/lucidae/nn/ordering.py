"""Ordered, axis-aligned latents for a linear bottleneck that has been trained already."""

from __future__ import annotations

from typing import Any

import torch

from lucidae._arrays import eigh_descending
from lucidae._eigen import fix_signs
from lucidae.moments import SecondMoment
from lucidae.nn._layers import Tensor, batches, check_bottleneck

__all__ = ["order_dimensions"]


def order_dimensions(encoder: Any, decoder: Any, data: Any) -> Tensor:
    """Turn the latents of a linear bottleneck into ordered principal axes, in place.

    The composition ``decoder(encoder(x))`` stays what it was, for every x. Afterwards the
    decoder's columns are orthonormal, the codes of the data are uncorrelated, and their
    variances descend: any prefix of the latents is the best one of its size. For a linear
    autoencoder at any minimum of the plain loss these are the principal components, whatever
    rotation training had ended in (Bao et al. 2020, section 4).

    Parameters
    ----------
    encoder : nn.Linear
        The layer that writes the k latents.
    decoder : nn.Linear
        The layer that reads them.
    data : tensor of shape (n, encoder.in_features), or loader of such batches
        What goes into `encoder`; two rows at least.

    Returns
    -------
    tensor of shape (k,)
        Variance that each latent now carries into the decoder, descending; 0 where the decoder
        could not see that many directions.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import order_dimensions
    >>> _ = torch.manual_seed(0)
    >>> encoder, decoder = torch.nn.Linear(5, 2), torch.nn.Linear(2, 5)
    >>> x = torch.randn(100, 5)
    >>> before = decoder(encoder(x))
    >>> variances = order_dimensions(encoder, decoder, x)
    >>> torch.allclose(decoder(encoder(x)), before, atol=1e-5)
    True
    >>> torch.allclose(torch.cov(encoder(x).T, correction=0), torch.diag(variances), atol=1e-5)
    True
    """
    check_bottleneck(encoder, decoder, ("encoder", "decoder"))
    moment = _code_moment(encoder, data)
    with torch.no_grad():
        basis, triangle = torch.linalg.qr(decoder.weight.double())
        variances, axes = eigh_descending(triangle @ moment @ triangle.mT)
        columns = fix_signs(basis @ axes)
        turn = columns.mT @ basis @ triangle
        _write(encoder, decoder, turn, columns)
        return _padded(variances.clamp_min(0.0), encoder.out_features).to(encoder.weight.dtype)


def _code_moment(encoder: Any, data: Any) -> Tensor:
    """Return the covariance of the codes, W Σ Wᵀ, from the exact moment of the inputs."""
    moment: SecondMoment | None = None
    for batch in batches(data):
        if batch.ndim != 2 or batch.shape[1] != encoder.in_features:
            raise ValueError(
                f"data gave a batch of shape {tuple(batch.shape)}, expected "
                f"(batch, {encoder.in_features})."
            )
        rows = batch.detach().to(encoder.weight.device)
        moment = SecondMoment.of(rows) if moment is None else moment.update(rows)
    if moment is None or moment.weight < 2:
        raise ValueError("data holds one row, expected two or more: one row has no variance.")
    weight = encoder.weight.detach().double()
    return weight @ moment.covariance @ weight.mT


def _write(encoder: Any, decoder: Any, turn: Tensor, columns: Tensor) -> None:
    """Put the turned latents into both layers; latents beyond the decoder's rank become zero."""
    width = encoder.out_features
    encoder.weight.copy_(_padded(turn @ encoder.weight.double(), width))
    if encoder.bias is not None:
        encoder.bias.copy_(_padded(turn @ encoder.bias.double(), width))
    decoder.weight.copy_(_padded(columns.mT, width).mT)


def _padded(rows: Tensor, count: int) -> Tensor:
    """Return `rows` with zero rows added up to `count`."""
    missing = count - rows.shape[0]
    return torch.cat([rows, rows.new_zeros((missing, *rows.shape[1:]))]) if missing else rows
