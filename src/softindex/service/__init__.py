"""An HTTP service over the library: `softindex serve`.

Bodies are parsed into calls of the library, and its records are the answers; nothing is computed here.
"""

from softindex.service.server import serve
from softindex.service.settings import Limits, Settings, make_settings, read_limits

__all__ = ["Limits", "Settings", "make_settings", "read_limits", "serve"]
