"""Datasets and the shifts that make a federation of them."""
