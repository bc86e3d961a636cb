"""Base class and field types of signed statements.

A statement that was read is written back byte for byte: members that are absent stay absent, and numbers stay numbers.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StrictBool, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

Earlier = SkipJsonSchema[None]
"""`X | Earlier = None`: always written now, but absent in statements that earlier versions issued."""

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(strict=True, ge=0)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = StrictBool


def write_timestamp(time: datetime) -> str:
    """Return RFC 3339 in UTC with milliseconds, the precision of every signed time."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read_timestamp(value: Any) -> Any:
    """Read ISO 8601; a time without an offset is UTC. pydantic alone would take a number for a time, too."""
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        raise ValueError("a time is a string (RFC 3339)")  # noqa: TRY004 (pydantic expects ValueError)
    parsed = datetime.fromisoformat(value)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


Timestamp = Annotated[
    datetime,
    BeforeValidator(_read_timestamp),
    PlainSerializer(write_timestamp, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


def _without_optional(schema: dict[str, Any], model: type[SignedModel]) -> None:
    schema["required"] = [name for name in schema.get("required", ()) if name not in model.may_be_absent]


class SignedModel(BaseModel):
    """Part of a signed statement. Members that a reader does not know are ignored."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        json_schema_serialization_defaults_required=True,
        json_schema_extra=_without_optional,
    )
    may_be_absent: ClassVar[frozenset[str]] = frozenset()
    """Members that the schema does not require: left out if empty, or unknown to earlier versions."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values. Members that were absent stay absent."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class OrderedModel(SignedModel):
    """Model whose members, and theirs, are declared in the order of their names and hold no fraction."""

    def to_canonical_json(self) -> bytes:
        """Return canonical JSON (RFC 8785), several times as fast as sorting the members first."""
        return self.model_dump_json(by_alias=True, exclude_unset=True).encode()
