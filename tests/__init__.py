"""The tests. In them what is deleted is freed at once, unless a test asks for undo: most look at what is freed.

What does not import them, the command line and the pages, has what users have.
"""

from ckstore.ops import config_file

object.__setattr__(config_file.UNDO_BY_HAND_S, "default", 0.0)
