"""Memory that the processor cannot address: copies to and from it beside other work, and what tells that it changed.

Only what a state, or a target, on a device needs is imported.
"""
