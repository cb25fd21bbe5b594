"""The mirror: a remote that gets every checkpoint after it is durable here. It never delays or fails a save."""
