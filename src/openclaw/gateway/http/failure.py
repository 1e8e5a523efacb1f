"""What a caller gets when answering failed: an error it can read, in the shape of the door it came through."""

from __future__ import annotations

from aiohttp import web

from openclaw.storage.disk_errors import in_words, is_disk_trouble, kind_of

_JSON_DOORS = ("/v1/", "/tools/", "/__openclaw__/")


def failure_response(path: str, error: Exception) -> web.Response:
    """507 or 503 for a disk that takes nothing for now, with what to do; 500 for everything else."""
    status, message, code = 500, "internal error (see logs)", "internal_error"
    if isinstance(error, OSError) and is_disk_trouble(error):
        code = f"disk_{kind_of(error)}"
        status = 507 if code == "disk_full" else 503
        message = f"not done: {in_words(error)}, then try again"
    if path.startswith(_JSON_DOORS):
        return web.json_response({"error": {"message": message, "type": "api_error", "code": code}}, status=status)
    return web.Response(status=status, text="Internal Server Error" if status == 500 else message)
