"""Check whether a training that is stopped and resumed in fresh processes equals an uninterrupted one.

`check` starts the processes and compares their records (`records`). Importing this module does not import torch.
"""
