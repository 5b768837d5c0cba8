"""Recipes that ship with rung: one TOML file for each run that a person would start."""
