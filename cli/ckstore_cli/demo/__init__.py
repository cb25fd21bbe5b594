"""``ckstore demo``: one story (`story`) about an ordinary training program (`trainer`)."""
