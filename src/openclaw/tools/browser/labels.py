"""A picture of the window with the refs of the last snapshot drawn in."""

from __future__ import annotations

import io
from typing import NamedTuple

from openclaw.tools.browser.cdp import CdpClosed, CdpError
from openclaw.tools.browser.tab import Tab
from openclaw.tools.images import off_loop

MOST_LABELS = 150
_COLOUR = (220, 38, 38)


class _Label(NamedTuple):
    ref: str
    left: float
    top: float
    right: float
    bottom: float


async def labelled(tab: Tab) -> tuple[bytes, str]:
    """The picture as PNG. Elements outside of the window get no label."""
    labels: list[_Label] = []
    view = (await tab.call("Page.getLayoutMetrics"))["cssVisualViewport"]
    for ref, node in tab.refs.items():
        if len(labels) >= MOST_LABELS:
            break
        if node.session:
            continue  # Frames of other sites have places of their own.
        try:
            quads = (await tab.call("DOM.getContentQuads", {"backendNodeId": node.backend_id})).get("quads") or []
        except CdpClosed:
            raise
        except CdpError:
            continue  # It cannot be seen.
        if not quads:
            continue
        across, down = quads[0][0::2], quads[0][1::2]
        if max(across) > 0 and max(down) > 0 and min(across) < view["clientWidth"] and min(down) < view["clientHeight"]:
            labels.append(_Label(ref, min(across), min(down), max(across), max(down)))
    picture = await tab.screenshot("png", whole=False, node=None)
    return await off_loop(lambda: _draw(picture, labels, view["clientWidth"])), "image/png"


def _draw(picture: bytes, labels: list[_Label], width: float) -> bytes:
    from PIL import Image, ImageDraw

    with Image.open(io.BytesIO(picture)) as opened:
        image = opened.convert("RGB")
    scale = image.width / width if width else 1.0
    draw = ImageDraw.Draw(image)
    for label in labels:
        left, top, right, bottom = (value * scale for value in label[1:])
        draw.rectangle((left, top, max(left, right), max(top, bottom)), outline=_COLOUR, width=2)
        size = draw.textbbox((0, 0), label.ref)
        place = (left, max(0.0, top - size[3] - 2))
        draw.rectangle((*place, place[0] + size[2] + 4, place[1] + size[3] + 2), fill=_COLOUR)
        draw.text((place[0] + 2, place[1]), label.ref, fill="white")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
