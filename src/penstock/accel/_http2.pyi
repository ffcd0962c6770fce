"""The compiled HTTP/2, as the type checker sees it: `service/http2` has the types."""

from typing import Any

def __getattr__(name: str) -> Any: ...
