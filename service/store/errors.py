"""Errors of the store. They know nothing about HTTP.

StoreError
├── NotFound                 the object does not exist, or belongs to another caller
├── Gone                     the object existed and was destroyed on purpose
├── InvalidRegistration      the parts of a model do not fit together; `field` names the part
├── InvalidPolicy            no certificate of such a model can meet the policy
├── IdempotencyMismatch      the key was used before with another body
├── KeyInFlight              a request with the same key is still in progress
├── NotCancellable           a worker has claimed the deletion, or it has ended
├── NothingToRetry           no part of the deletion has failed
├── InvalidExtension         the regulation does not allow the deadline
├── InvalidLimits            a token of this role or name cannot have these limits
├── NotRefreshable           the model has no chains to continue
├── NotResendable            the callback was delivered, or is still being sent
├── NotDrawable              the model has no draws to pick, or not as many
├── NotReplaceable           verifiers accept the certificate, or it cannot be issued again
├── ArtifactDamaged          the content of a file does not match its digest
├── ArtifactsUnavailable     the artifact store cannot be reached or used
├── DiskFull                 no space for a file; nothing was stored
├── SecretMismatch           the process has another secret than the database; nothing was stored
├── PolicyMissed             the bound exceeds the model's policy; nothing was published
├── KeyInactive              a signing key was retired or revoked; nothing was signed
├── ClockBehind              the database's clock is behind what it dated before; nothing was signed
├── CertificateRejected      the verifier rejects a new certificate; nothing was published
└── LeaseLost                another worker has taken over the batch; nothing may be published
"""

from __future__ import annotations


class StoreError(Exception):
    """Base class of the store's errors. Messages never contain an identity."""


class NotFound(StoreError):
    pass


class Gone(StoreError):
    pass


class InvalidRegistration(StoreError):
    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class InvalidPolicy(StoreError):
    pass


class IdempotencyMismatch(StoreError):
    pass


class KeyInFlight(StoreError):
    pass


class NotCancellable(StoreError):
    pass


class NothingToRetry(StoreError):
    pass


class InvalidExtension(StoreError):
    pass


class InvalidLimits(StoreError):
    pass


class NotRefreshable(StoreError):
    pass


class NotResendable(StoreError):
    pass


class NotDrawable(StoreError):
    pass


class NotReplaceable(StoreError):
    pass


class ArtifactDamaged(StoreError):
    pass


class ArtifactsUnavailable(StoreError):
    pass


class DiskFull(StoreError):
    pass


class SecretMismatch(StoreError):
    pass


class PolicyMissed(StoreError):
    pass


class KeyInactive(StoreError):
    """A key of this process was retired, revoked or lost from the list. A restart with its successor helps."""


class ClockBehind(StoreError):
    """The database's clock went back: what is signed now would be dated before its request."""


class CertificateRejected(StoreError):
    """The verifier rejects what is about to be published."""


class LeaseLost(StoreError):
    pass
