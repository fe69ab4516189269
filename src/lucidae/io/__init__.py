"""Files that are written atomically and read with bounds."""
