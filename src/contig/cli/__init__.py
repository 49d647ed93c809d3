"""Commands: ``contig demo``."""
