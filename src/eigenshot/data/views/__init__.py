"""Random views of pictures, made on the device."""
