"""The bundled models, their optimizers, and text generation."""
