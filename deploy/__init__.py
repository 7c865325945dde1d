"""Deploying a federation: certificates, keys, launchers, checks."""
