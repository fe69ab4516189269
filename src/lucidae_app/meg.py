"""The command `lucidae fit meg` (extras `cli` and `mne`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from lucidae.validation import install_command
from lucidae_app.console import (
    print_certificate,
    print_line,
    print_written,
    printed_warnings,
    timed,
)
from lucidae_app.files import Force, check_page
from lucidae_app.fit import NOISE, number_of, number_or_word

MISSING = f"This command needs MNE, which is not installed: {install_command('cli,mne')}"


Condition = Annotated[
    str | None,
    typer.Option(
        help="The evoked response to use, by its comment or 0-based index; needed if the file has "
        "several."
    ),
]
NoiseVariance = Annotated[
    str,
    typer.Option(
        help="Number above 0 by which the noise covariance is multiplied, or how it is chosen: "
        "learn, cv, cv_1se or auto."
    ),
]
Loose = Annotated[
    str,
    typer.Option(
        help="Orientation of the sources, as MNE's argument loose: from 0 (along the normals of "
        "the surface) to 1 (free), or auto."
    ),
]
Fixed = Annotated[
    bool,
    typer.Option(
        "--fixed", help="Orient all sources along the normals of the surface (--loose 0)."
    ),
]
Depth = Annotated[
    float,
    typer.Option(min=0.0, help="Exponent of MNE's depth weighting of the sources; 0 for none."),
]
FirstTime = Annotated[
    float | None, typer.Option(help="First time of the evoked response to use, in seconds.")
]
LastTime = Annotated[
    float | None, typer.Option(help="Last time of the evoked response to use, in seconds.")
]
Debias = Annotated[
    bool,
    typer.Option(
        "--debias",
        help="Compute the amplitudes of the sources by least squares, without shrinkage.",
    ),
]
WithPath = Annotated[
    bool,
    typer.Option(
        help="Whether the page shows the sources at many noise variances, which takes most of the "
        "time."
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        help="Path of the HTML page; by default my-sources.html in the current folder "
        "for an EVOKED file my.fif."
    ),
]
EstimatePrefix = Annotated[
    str | None,
    typer.Option(
        metavar="PREFIX",
        help="Save the source estimate in files whose names begin with this prefix.",
    ),
]


def meg(
    evoked: Annotated[Path, typer.Argument(help="Evoked responses (-ave.fif).")],
    forward: Annotated[Path, typer.Argument(help="Forward solution (-fwd.fif).")],
    covariance: Annotated[Path, typer.Argument(help="Noise covariance (-cov.fif).")],
    condition: Condition = None,
    noise_variance: NoiseVariance = "1",
    loose: Loose = "auto",
    fixed: Fixed = False,
    depth: Depth = 0.8,
    tmin: FirstTime = None,
    tmax: LastTime = None,
    debias: Debias = False,
    path: WithPath = True,
    out: Page = None,
    stc: EstimatePrefix = None,
    force: Force = False,
) -> None:
    """Localise the few sources of an evoked response; write a page with figures and certificate."""
    if fixed and loose not in ("auto", "0"):
        raise ValueError(f"--fixed and --loose {loose} were given: omit one of them.")
    settings = {
        "noise_variance": number_or_word(
            "noise-variance", noise_variance, NOISE, lambda value: 0 < value < float("inf"),
            f"one of {', '.join(NOISE)}, or a finite number above 0, by which the noise covariance "
            "is multiplied; 1 leaves it unchanged",
        ),
        "loose": number_or_word(
            "loose", "0" if fixed else loose, ("auto",), lambda value: 0 <= value <= 1,
            "a number from 0 to 1, or auto",
        ),
        "depth": depth or None,
        "debias": debias,
    }  # fmt: skip
    inputs = (evoked, forward, covariance)
    for file in inputs:
        if not file.exists():
            raise ValueError(f"There is no file {str(file)!r}: check the path.")
    page = Path(f"{evoked.name.split('.')[0]}-sources.html") if out is None else out
    check_page(page, inputs, force)
    existing = [] if stc is None or force else _estimate_files(stc)
    if existing:
        raise ValueError(
            f"{str(existing[0])!r} exists: give another prefix with --stc, or add --force to "
            "replace it."
        )
    mne, sparse_vae = _packages()
    with printed_warnings(), timed(f"Localising the sources of {evoked.name}"):
        from lucidae_app.report.page import Clock, write_page
        from lucidae_app.report.sources import sources_page

        clock = Clock()
        with clock("fit"):
            response = _cropped(_chosen(mne, evoked, condition), tmin, tmax)
            problem = (response, *_model(mne, forward, covariance))
            if stc is not None:
                _check_hdf5(problem[1]["src"])
            result = sparse_vae(*problem, return_result=True, verbose="ERROR", **settings)
        name = f"{evoked.name}, {response.comment}" if response.comment else evoked.name
        write_page(page, sources_page(result, name=name, clock=clock, with_path=path))
    print_certificate(result.certificate)
    for line in _lines(result):
        print_line(line)
    print_written(page)
    if stc is not None:
        with mne.use_log_level("ERROR"):
            paths = _saved(result.stc, stc, in_hdf5=_needs_hdf5(result.forward["src"]))
        for file in paths:
            print_written(file)


def _model(mne: Any, forward: Path, covariance: Path) -> tuple[Any, Any]:
    """Return the forward solution and the noise covariance that MNE reads from two files."""
    noise_cov = _read(mne.read_cov, covariance, "noise covariance")
    # MNE reads diagonal covariances in another byte order than its whitening accepts.
    noise_cov["data"] = np.array(noise_cov["data"], dtype=float)
    return _read(mne.read_forward_solution, forward, "forward solution"), noise_cov


def _packages() -> tuple[Any, Any]:
    """Return MNE and `sparse_vae`, or raise an error that says what to install."""
    try:
        import mne

        from lucidae.mne import sparse_vae
    except ImportError as error:
        raise ValueError(MISSING) from error
    return mne, sparse_vae


def _read(reader: Any, file: Path, what: str) -> Any:
    """Return what a function of MNE reads from a file; an error names the file and `what`."""
    try:
        return reader(file, verbose="ERROR")
    except Exception as error:  # what MNE raises depends on the content of the file
        raise ValueError(
            f"{str(file)!r} could not be read as a {what}, expected a FIF file that MNE has "
            f"written: {error}"
        ) from error


def _chosen(mne: Any, file: Path, condition: str | None) -> Any:
    """Return the evoked response of a file that ``--condition`` names; without it, the only one."""
    found = _read(mne.read_evokeds, file, "file of evoked responses")
    names = [str(response.comment) for response in found]
    if condition is None:
        if len(found) == 1:
            return found[0]
        listed = ", ".join(repr(name) for name in names)
        raise ValueError(
            f"{file.name} has {len(found)} evoked responses: choose one with --condition: {listed}."
        )
    if names.count(condition) == 1:
        return found[names.index(condition)]
    number = number_of(condition)
    if number.is_integer() and 0 <= number < len(found):
        return found[int(number)]
    listed = ", ".join(repr(name) for name in names)
    raise ValueError(
        f"--condition {condition} was given, but {file.name} has the evoked responses {listed}: "
        "give a comment that occurs once, or a 0-based index."
    )


def _cropped(response: Any, tmin: float | None, tmax: float | None) -> Any:
    """Return the part of an evoked response from `tmin` to `tmax` seconds; None means no limit."""
    first, last = float(response.times[0]), float(response.times[-1])
    begin, end = first if tmin is None else tmin, last if tmax is None else tmax
    tolerance = 0.5 / float(response.info["sfreq"])
    if not first - tolerance <= begin <= end <= last + tolerance:
        options = {"--tmin": tmin, "--tmax": tmax}
        given = [f"{name} {value:g}" for name, value in options.items() if value is not None]
        raise ValueError(
            f"{' '.join(given)} was given, expected times of the evoked response in ascending "
            f"order, from {first:g} to {last:g} s."
        )
    return response.crop(max(begin, first), min(end, last))


def _lines(result: Any) -> list[str]:
    """Return the printed lines about a result: a headline, and one line for each source."""
    entries = [found.to_dict() for found in result.found_sources]
    head = (
        f"Sources: {len(entries)}; {result.goodness_of_fit:.1f} % of the whitened power explained; "
        f"noise variance {result.noise_variance:.3g}"
    )
    return [
        head,
        *(
            f"  {number}: {entry['name']}{' (doubtful)' * entry['doubtful']}, "
            f"({', '.join(f'{1e3 * x:.1f}' for x in entry['center'])}) mm, "
            f"{1e9 * entry['amplitude']:.3g} nA·m at {1e3 * entry['time']:.1f} ms, "
            f"{entry['power']:.1f} % of the power"
            for number, entry in enumerate(entries, start=1)
        ),
        *([result.advice] if result.advice else []),
    ]


ENDINGS = ("-lh.stc", "-rh.stc", "-vl.stc", "-stc.h5")
"""Endings of the files of source estimates: surfaces, volumes and both together."""


def _needs_hdf5(spaces: Any) -> bool:
    """Tell whether source estimates on these source spaces can be stored in HDF5 only.

    Other formats of MNE contain two hemispheres or one volume.
    """
    return len(spaces) > 1 and spaces.kind != "surface"


def _check_hdf5(spaces: Any) -> None:
    """Raise an error if a package is missing that stores estimates on these source spaces."""
    if _needs_hdf5(spaces) and find_spec("h5io") is None:
        raise ValueError(
            "--stc was given, but the source estimate of several source spaces (mixed, or several "
            "volumes) is stored in HDF5 by the package h5io, which is not installed: "
            "pip install h5io, or omit --stc."
        )


def _saved(estimate: Any, prefix: str, *, in_hdf5: bool) -> list[Path]:
    """Save a source estimate of MNE, and return the paths of the files that were written."""
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    began = {path: path.stat().st_mtime_ns for path in _estimate_files(prefix)}
    estimate.save(prefix, "h5" if in_hdf5 else "stc", overwrite=True, verbose="ERROR")
    return [path for path in _estimate_files(prefix) if path.stat().st_mtime_ns != began.get(path)]


def _estimate_files(prefix: str) -> list[Path]:
    """Return the existing files of source estimates whose names begin with a prefix."""
    return [path for path in (Path(f"{prefix}{end}") for end in ENDINGS) if path.exists()]
