"""What can go wrong in the store, and nothing about HTTP.

StoreError
├── NotFound                 no such deletion, model, version or certificate (or not this caller's)
├── Gone                     it was there and was destroyed on purpose
├── InvalidRegistration      a model that does not fit together; `field` names the part
├── InvalidPolicy            a policy that no certificate of such a model can meet
├── IdempotencyMismatch      a key was used before with another body
├── KeyInFlight              a request with the same key is still being answered
├── NotCancellable           a worker has begun with the deletion, or it has ended
├── NothingToRetry           no part of the deletion has failed
├── InvalidExtension         a deadline that the regulation does not allow
├── NotResendable            the callback was delivered, or is still being tried
├── ArtifactDamaged          a file no longer has the content it is named after
├── ArtifactsAway            the store of the artifacts cannot be reached or used
├── DiskFull                 there is no room for a file; nothing was stored
├── PolicyMissed             a bound above what the model's policy allows: not published
└── LeaseLost                another worker took the batch over: nothing may be published
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of everything the store raises on purpose. Messages never hold an identity."""


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


class NotResendable(StoreError):
    pass


class ArtifactDamaged(StoreError):
    pass


class ArtifactsAway(StoreError):
    pass


class DiskFull(StoreError):
    pass


class PolicyMissed(StoreError):
    pass


class LeaseLost(StoreError):
    pass
