"""Bundles for comparing verifiers: genuine ones of every kind, and seeded mutations of them."""
