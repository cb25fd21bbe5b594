"""Exhaustive small models of the protocol: every order of steps, kills and power cuts, and what each rule is for."""
