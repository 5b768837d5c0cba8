"""Policies over transformers models: loading, layout, attention, log-probabilities."""
