"""Certificates of networks: estimates on sampled rows, since a network's energy is not convex."""
