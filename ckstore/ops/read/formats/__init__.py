"""The other export formats: those of torch, and model directories. `ops/read/export` writes safetensors."""
