"""One config-driven decoder for every dense family, and its loading from Hugging Face checkpoints."""
