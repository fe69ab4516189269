"""Simulated training of linear autoencoders: many runs at once, exact, in the eigenbasis of Σ."""

from lucidae.linear.simulation.dynamics import epochs_to_alignment, simulate
from lucidae.linear.simulation.runs import Plan, Run, Trajectory

__all__ = ["Plan", "Run", "Trajectory", "epochs_to_alignment", "simulate"]
