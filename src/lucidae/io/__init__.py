"""Everything that touches a disk: saved models, tables, atomic writes."""
