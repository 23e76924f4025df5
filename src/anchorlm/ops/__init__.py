"""Pure tensor functions: values in, values out."""
