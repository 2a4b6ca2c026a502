"""`python -m e2e.schema` writes the JSON Schema of result.json, `result.schema.json` beside this file."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.schema.result import SCHEMA, Result

FILE = Path(__file__).with_name("result.schema.json")


def schema_text() -> str:
    """The schema. A field with a default may be absent: older runs lack what came later."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:{SCHEMA.replace('/', ':')}"}
    return json.dumps(schema | Result.model_json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema_text(), encoding="utf-8")
