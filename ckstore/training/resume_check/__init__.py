"""The check of a resume: is a training that was stopped and resumed, in fresh processes, the one that was not stopped?

`check` starts the processes and judges what they recorded (`records`). Importing it imports no torch.
"""
