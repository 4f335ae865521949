"""From a text file to a trained model."""
