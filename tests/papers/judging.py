"""Measure an experiment in this process and judge it, so that a test can break what it measures."""

from lucidae_papers.results import Measured, Results


def measured(setting):
    """Return the finished cells of a setting."""
    return Results(
        tuple(
            Measured(cell.settings, dict(cell.work([cell.settings], "cpu")[0]), {"seconds": 0.0})
            for cell in setting.cells()
        )
    )


def verdicts(setting, expect, results=None):
    """Return the verdict on each claim by the name of its series."""
    curves = setting.curves(measured(setting) if results is None else results)
    claims = [verdict.judge(curves, "a paper") for verdict in flat(expect)]
    return {claim.name: claim.holds for claim in claims}


def flat(expect):
    """Return the verdicts of all statements in one list."""
    return [verdict for verdicts in expect.values() for verdict in verdicts]
