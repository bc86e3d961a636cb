"""Offline verifier of receipts and certificates: needs only the file and Lethe's public keys.

It depends only on `cryptography`, shares no code with the signer, and reports each check on a line. It checks the
signature, the consistency of the content and its place in the log. It cannot recompute a bound: that would take the
erased data.

`lethe verifier` writes this folder into one file that runs by itself: `python lethe-verify.pyz CERTIFICATE --key KEYS`.
"""

from .batch import BatchVerifier
from .bundle import Unconfirmed, Verified, verify
from .reading import Rejected

__all__ = ["BatchVerifier", "Rejected", "Unconfirmed", "Verified", "verify"]
