"""Reading and writing of files: saved models, tables and atomic writes."""
