"""Where images come from, benchmark splits, and augmentation."""
