"""The bundled networks, their optimizers, and text made from them."""
