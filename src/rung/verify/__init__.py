"""Joins estimators and oracle: what an estimator is the expectation of, exactly, and how noisy it is.

assert_unbiased, bias_and_variance   anybody's loss, for tests and notebooks
catalogue   `rung verify`, `rung verify METHOD`: the named methods against what is claimed of them
claims      what that is, derived before it was measured
enumeration every batch that could be sampled, with its probability
problems    the problems that are enumerated
findings    what every command shows, as data
"""

from rung.verify.enumeration import Moments, Setting, estimator_of, moments
from rung.verify.findings import Chart, Findings, Line, Table
from rung.verify.unbiased import Bias, assert_unbiased, bias_and_variance, describe

__all__ = [
    "Bias",
    "Chart",
    "Findings",
    "Line",
    "Moments",
    "Setting",
    "Table",
    "assert_unbiased",
    "bias_and_variance",
    "describe",
    "estimator_of",
    "moments",
]
