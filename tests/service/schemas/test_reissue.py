from __future__ import annotations

import uuid

import pytest
from pydantic import BaseModel, ValidationError

from service.schemas.reissue import ReissuedAbsence, ReissuedCertificate


def test_ids_are_uuids() -> None:
    new, old = uuid.uuid4(), uuid.uuid4()
    content = {"id": str(new), "replaces": str(old), "certificate": f"/api/v1/certificates/{new}"}
    assert ReissuedCertificate.model_validate(content).model_dump(mode="json") == content
    with pytest.raises(ValidationError):
        ReissuedCertificate.model_validate({**content, "replaces": "the old one"})


@pytest.mark.parametrize("schema", [ReissuedCertificate, ReissuedAbsence])
def test_every_member_is_described(schema: type[BaseModel]) -> None:
    assert all(member.description for member in schema.model_fields.values())
