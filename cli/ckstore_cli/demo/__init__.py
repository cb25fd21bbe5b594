"""`ckstore demo`: training that is killed in the middle of a save, resumed, and proven whole.

`main` drives it and imports torch only when it runs; `trainer` is the program that is killed.
"""
