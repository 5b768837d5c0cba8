"""Joins estimators and oracle: what an estimator is the expectation of, exactly, and how noisy it is."""
