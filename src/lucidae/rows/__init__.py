"""Second moments of rows and their leading eigenpairs, which linear and dropout models share."""
