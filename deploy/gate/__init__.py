"""The gate in front of Flower's SuperLink: nodes' calls pass, nothing else does."""
