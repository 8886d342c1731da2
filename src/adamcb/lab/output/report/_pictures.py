"""Pictures of the chosen samples, as PNG in data URIs."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

# Larger pictures would make a page of hundreds of them too heavy; nobody sees more in a thumbnail.
LARGEST_SIDE = 96


def data_uri(pixels: np.ndarray) -> str:
    """Return uint8 pixels [H, W] or [H, W, 3] as a data URI, shrunk to `LARGEST_SIDE` if larger."""
    image = Image.fromarray(pixels)
    if max(image.size) > LARGEST_SIDE:
        image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
