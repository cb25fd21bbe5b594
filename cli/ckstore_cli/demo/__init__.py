"""``ckstore demo``: a sequence of steps (`story`) with an ordinary training program (`trainer`)."""
