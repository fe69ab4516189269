"""Full against diagonal covariance on images, from a shell (Wipf 2023, section 5.2).

``python -m lucidae.experiments.vae.shell --help``; the embedded digits stand in for MNIST when no
data are given.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lucidae.experiments.vae.cell import digits
from lucidae.experiments.vae.comparison import SCALES, compare_covariances
from lucidae.io.atomic import atomic_path, load_arrays, save_arrays

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study from a shell; write results.json and pictures.npz."""
    options = _parser().parse_args(arguments)
    design = SCALES[options.scale]
    changes = {"epochs": options.epochs, "compiled": options.compiled}
    training = replace(design.training, **{k: v for k, v in changes.items() if v is not None})
    seeds = None if options.seeds is None else tuple(options.seeds)
    others = {"latent_dim": options.latent_dim, "seeds": seeds, "noise_variance": options.noise}
    design = replace(
        design, training=training, **{k: v for k, v in others.items() if v is not None}
    )
    images, held_out = digits() if options.data is None else _read(options.data)
    study = compare_covariances(
        images,
        held_out,
        design,
        device=options.device,
        checkpoints=options.checkpoints,
        workers=options.workers,
        report=lambda line: print(line, flush=True),
    )
    pictures = study.pop("pictures")
    print(study["text"])
    save_arrays(options.out / "pictures.npz", pictures)
    with atomic_path(options.out / "results.json") as path:
        path.write_text(json.dumps(study, indent=1), encoding="utf-8")
    return 0


def _read(path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    arrays = load_arrays(path, "a file of images")
    if not {"train", "test"} <= arrays.keys():
        raise ValueError(f"{path} holds {sorted(arrays)}, expected the arrays 'train' and 'test'.")
    return arrays["train"], arrays["test"]


def _noise_variance(text: str) -> str | float:
    return text if text == "learn" else float(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lucidae.experiments.vae.shell", description=__doc__
    )
    parser.add_argument("--data", type=Path, help="npz file with 'train' and 'test' images")
    parser.add_argument("--out", type=Path, default=Path("results/vae-mnist"), help="folder")
    parser.add_argument("--checkpoints", type=Path, help="folder to resume from")
    parser.add_argument("--scale", default="smoke", choices=sorted(SCALES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--latent-dim", type=int)
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument(
        "--noise-variance",
        dest="noise",
        metavar="GAMMA",
        type=_noise_variance,
        help="'learn', or a number that both arms share",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that share the runs")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction)
    return parser


if __name__ == "__main__":
    sys.exit(main())
