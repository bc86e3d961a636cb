"""Responses about certificates that were issued again."""

from __future__ import annotations

import uuid

from pydantic import BaseModel, Field


class ReissuedCertificate(BaseModel):
    """Certificate that was issued in the stead of another."""

    id: uuid.UUID = Field(description="Id of the new certificate.")
    replaces: uuid.UUID = Field(description="Id of the certificate that it replaces.")
    certificate: str = Field(description="Path of the new certificate.")


class ReissuedAbsence(BaseModel):
    """Certificate of absence that was issued in the stead of another."""

    statement: str = Field(description="SHA-256 of the new statement.")
    absence: str = Field(description="Path of the new certificate of absence.")
