"""The loop and its parts: from a recipe to a trained model."""
