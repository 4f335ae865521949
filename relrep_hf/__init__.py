"""One shared relative space for any Hugging Face encoders."""

__version__ = "0.1.0"
