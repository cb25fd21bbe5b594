"""The export formats of torch, and model directories. `ops/read/export` writes safetensors."""
