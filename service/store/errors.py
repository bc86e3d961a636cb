"""What can go wrong in the store, and nothing about HTTP.

StoreError
├── NotFound                 no such deletion, model, version or certificate (or not this caller's)
├── Gone                     it was there and was destroyed on purpose
├── InvalidRegistration      a model that does not fit together; `field` names the part
├── IdempotencyMismatch      a key was used before with another body
├── NotCancellable           a worker has begun with the deletion, or it has ended
├── NothingToRetry           no part of the deletion has failed
├── InvalidExtension         a deadline that the regulation does not allow
├── ArtifactDamaged          a file no longer has the content it is named after
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


class IdempotencyMismatch(StoreError):
    pass


class NotCancellable(StoreError):
    pass


class NothingToRetry(StoreError):
    pass


class InvalidExtension(StoreError):
    pass


class ArtifactDamaged(StoreError):
    pass


class PolicyMissed(StoreError):
    pass


class LeaseLost(StoreError):
    pass
