"""Audit of the certificates. Truths are computed by code of its own: nothing of `ml` takes part in them.

extended, energies, minimum, sample_truth   truths: 80-bit arithmetic, checked with 50 digits
awkward_data, removals, scenes          what is judged: models, rows to forget
deletions, sequences, wrong_samples, predictions, costs     judgements of what `ml` issues
report                                  the command `lethe bench audit`
"""
