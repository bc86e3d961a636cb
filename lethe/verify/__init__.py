"""Checks a receipt or certificate with nothing but the file and our public keys: no network, database or server.

Needs only `cryptography`, shares no code with the signer, and says line by line what it checked. It speaks of what was
signed, of its inner consistency and of its place in the log; it cannot recompute a bound, which would take the data
that was erased.

`lethe verifier` writes this folder into one file that runs by itself: `python lethe-verify.pyz CERTIFICATE --key KEYS`.
"""

from .bundle import Verified, verify
from .reading import Rejected

__all__ = ["Rejected", "Verified", "verify"]
