"""What a caller gets when answering failed: an error it can read, in the shape of the door it came through."""

from __future__ import annotations

import errno

from aiohttp import web

from openclaw.storage.trouble import in_words, is_disk_trouble

_JSON_DOORS = ("/v1/", "/tools/", "/__openclaw__/")
_DISK_CODES = {errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full", errno.EROFS: "disk_read_only"}


def failure_response(path: str, error: Exception) -> web.Response:
    """507 or 503 for a disk that takes nothing for now, with what to do; 500 for everything else."""
    status, message, code = 500, "internal error (see logs)", "internal_error"
    if isinstance(error, OSError) and is_disk_trouble(error):
        code = _DISK_CODES.get(error.errno or 0, "disk_error")
        status = 507 if code == "disk_full" else 503
        message = f"not done: {in_words(error)}, then try again"
    if path.startswith(_JSON_DOORS):
        return web.json_response({"error": {"message": message, "type": "api_error", "code": code}}, status=status)
    return web.Response(status=status, text="Internal Server Error" if status == 500 else message)
