"""Training under kills with torchft and with evenpace; see README.md."""
