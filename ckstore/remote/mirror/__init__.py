"""The mirror: a remote to which each checkpoint is pushed once it is durable locally. Mirroring never delays a save."""
